#include "tieshard/cli/progress.h"

#include <algorithm>

#include "tieshard/cli/table.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard::cli {
namespace {

constexpr std::size_t kBarWidth = 24;
constexpr std::size_t kLabelWidth = 6;

std::string bar(std::uint64_t done, std::uint64_t total) {
  const double share = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  const auto filled = std::min(kBarWidth, static_cast<std::size_t>(share * static_cast<double>(kBarWidth)));
  return std::string(filled, '#') + std::string(kBarWidth - filled, '-');
}

std::string padded_label(const std::string& label) {
  return label + std::string(kLabelWidth - std::min(kLabelWidth, display_width(label)), ' ');
}

} // namespace

Progress::Progress(Console console, const std::string& label, std::uint64_t total)
    : console_(console), label_(padded_label(label)), total_(total) {
  update(0);
}

Progress::~Progress() {
  erase();
}

void Progress::update(std::uint64_t done) {
  if (!console_.err.terminal) {
    return;
  }
  const std::uint64_t shown = std::min(done, total_);
  std::string line = concat(label_, " ", bar(shown, total_), "  ", format_bytes(shown), " of ", format_bytes(total_));
  // A line that the terminal would wrap could not be taken back.
  line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(1, console_.err.width - 1))));
  if (line != drawn_) {
    console_.err.text << "\r\x1b[K" << line << std::flush;
    drawn_ = std::move(line);
  }
}

void Progress::finish(std::string_view summary) {
  erase();
  console_.out.text << label_ << " ";
  if (console_.out.terminal) {
    console_.out.text << bar(total_, total_) << "  ";
  }
  console_.out.text << summary << "\n" << std::flush;
}

void Progress::erase() {
  if (!drawn_.empty()) {
    console_.err.text << "\r\x1b[K" << std::flush;
    drawn_.clear();
  }
}

} // namespace tieshard::cli
