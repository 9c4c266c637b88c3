#include "tieshard/core/doctor/finding_list.h"

#include <algorithm>

namespace tieshard {
namespace {

bool same(const Diagnostic& a, const Diagnostic& b) {
  return a.code == b.code && a.level == b.level && a.where == b.where && a.why == b.why;
}

} // namespace

void FindingList::add(const Diagnostic& finding) {
  if (std::ranges::none_of(findings_, [&](const Diagnostic& known) { return same(known, finding); })) {
    findings_.push_back(finding);
  }
}

void FindingList::add(const std::vector<Diagnostic>& findings) {
  for (const Diagnostic& finding : findings) {
    add(finding);
  }
}

bool FindingList::collect(const std::function<void()>& check) {
  const auto add_error = [this](Diagnostic refusal) {
    refusal.level = Level::kError;
    add(refusal);
  };
  try {
    check();
    return true;
  } catch (const InputError& error) {
    add_error(error.diagnostic());
  } catch (const UsageError& error) { // its values are the caller's options: a flag can be wrong too
    add_error(error.diagnostic());
  }
  return false;
}

std::vector<Diagnostic> FindingList::sorted() const {
  std::vector<Diagnostic> result = findings_;
  std::ranges::stable_sort(result, {}, &Diagnostic::level);
  return result;
}

} // namespace tieshard
