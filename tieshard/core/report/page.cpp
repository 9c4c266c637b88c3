#include "tieshard/core/report/page.h"

#include "tieshard/core/base/error.h"
#include "tieshard/core/report/html.h"

namespace tieshard {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --paper: #fbfaf7; --ink: #1d1c1a; --soft: #5b5852; --line: #d9d5cc; --card: #ffffff;
  --one: #2f5d8a; --two: #8a5a2f; --good: #1f6b3a; --warning: #8a5200; --error: #a3211b; --note: #31576e; --bar: #e8e4da; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16171a; --ink: #e8e6e1; --soft: #a8a49b; --line: #35363b; --card: #1e2024;
    --one: #7fb2e5; --two: #e0ac75; --good: #7fd19b; --warning: #f0b860; --error: #ff8f86; --note: #8fc3dd; --bar: #2c2e34; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
header, main, footer { max-width: 62rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; } footer { padding-bottom: 3rem; color: var(--soft); font-size: .875rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .75rem; overflow-wrap: anywhere; font-weight: 650; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; font-weight: 650; } h3 { font-size: 1rem; margin: 0 0 .35rem; font-weight: 600; }
p { margin: .5rem 0; } code, .name { font: .875em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.badge { display: inline-block; padding: .05rem .55rem; border: 1.5px solid currentColor; border-radius: .4rem; font-weight: 650;
  font-size: .875rem; } .good { color: var(--good); } .warning { color: var(--warning); } .error { color: var(--error); } .note { color: var(--note); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem 1.5rem; margin: 1rem 0 0; }
.facts div { border-top: 2px solid var(--line); padding-top: .35rem; } .facts dt { color: var(--soft); font-size: .8125rem; }
.facts dd { margin: 0; font-size: 1.0625rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.finding { background: var(--card); border: 1px solid var(--line); border-left: 4px solid currentColor; border-radius: .4rem; padding: .8rem 1rem; margin: .75rem 0; }
.finding > * { color: var(--ink); } .finding h3 .badge { margin-right: .4rem; } .finding.error > h3 .badge { color: var(--error); }
.finding.warning > h3 .badge { color: var(--warning); } .finding.note > h3 .badge { color: var(--note); }
.finding dl { display: grid; grid-template-columns: 4rem minmax(0, 1fr); gap: .2rem .75rem; margin: .4rem 0 0; }
.finding dt { color: var(--soft); } .finding dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .875rem; margin-top: .35rem; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px ui-monospace, Menlo, Consolas, monospace; }
svg .soft { fill: var(--soft); } svg .axis { stroke: var(--line); stroke-width: 1; } svg .one { stroke: var(--one); } svg .fill-one { fill: var(--one); }
svg .two { fill: var(--two); } svg .limit { stroke: var(--error); stroke-width: 2; stroke-dasharray: 4 3; } svg .box { fill: var(--card); stroke: var(--one); stroke-width: 1.5; }
svg .link { fill: none; stroke: var(--one); stroke-width: 1.5; } svg .curve { fill: none; stroke: var(--one); stroke-width: 1.75; }
.bars { list-style: none; margin: 0; padding: 0; } .bars li { margin: .45rem 0; } .bars .row { display: flex; justify-content: space-between; gap: 1rem; font-size: .875rem; }
.bars .row > :first-child { min-width: 0; overflow-wrap: anywhere; } .bars .row > :last-child { white-space: nowrap; font-variant-numeric: tabular-nums; }
.track { position: relative; height: .7rem; background: var(--bar); border-radius: .2rem; } .track i { position: absolute; inset: 0 auto 0 0; background: var(--one); border-radius: .2rem; min-width: 1px; }
.track i.over { background: var(--error); } .track b { position: absolute; top: -.25rem; bottom: -.25rem; width: 2px; background: var(--error); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: .25rem 0; } th, td { text-align: left; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody th { font-weight: 400; } td .name, th .name { white-space: nowrap; } .number { text-align: right; white-space: nowrap; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--note); } :focus-visible { outline: 2px solid var(--one); outline-offset: 2px; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 0 2rem; }
@media print { body { background: #fff; } details:not([open]) > * { display: revert; } }
)css";

} // namespace

std::string html_page(std::string_view title, const std::string& lead, const std::string& body) {
  return concat(kPageBegin,
                "<meta charset=\"utf-8\">\n",
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
                "<meta name=\"color-scheme\" content=\"light dark\">\n",
                "<link rel=\"icon\" href=\"data:,\">\n<title>",
                html_text(title),
                "</title>\n<style>",
                kStyle,
                "</style>\n</head>\n<body>\n",
                "<header>\n<h1>",
                html_name(title, 120),
                "</h1>\n",
                lead,
                "</header>\n<main>\n",
                body,
                "</main>\n",
                "<footer><p>Made by tieshard. Figures are of one rank unless they say otherwise; 1 MiB is 1,048,576 "
                "bytes.</p></footer>\n",
                "</body>\n</html>\n");
}

std::string html_badge(std::string_view kind, std::string_view text) {
  return concat("<span class=\"badge ", kind, "\">", html_text(text), "</span>");
}

} // namespace tieshard
