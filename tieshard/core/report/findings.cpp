#include "tieshard/core/report/findings.h"

#include "tieshard/core/report/html.h"
#include "tieshard/core/report/page.h"

namespace tieshard {
namespace {

std::string word(Level level) {
  return level == Level::kError ? "error" : level == Level::kWarning ? "warning" : "note";
}

std::string entry(const char* term, const std::string& text) {
  return text.empty() ? "" : concat("<dt>", term, "</dt><dd>", html_text(text), "</dd>");
}

std::string article(const Diagnostic& finding) {
  const std::string level = word(finding.level);
  return concat("<article class=\"finding ",
                level,
                "\"><h3>",
                html_badge(level, level),
                " ",
                html_text(finding.what),
                "</h3><p><code>",
                id(finding.code),
                "</code></p><dl>",
                entry("where", finding.where),
                entry("why", finding.why),
                entry("fix", finding.fix),
                "</dl></article>\n");
}

} // namespace

std::string html_findings(const std::vector<Diagnostic>& findings) {
  if (findings.empty()) {
    return "<p>Nothing to say.</p>\n";
  }
  std::string text;
  for (const Diagnostic& finding : findings) {
    text += article(finding);
  }
  return text;
}

} // namespace tieshard
