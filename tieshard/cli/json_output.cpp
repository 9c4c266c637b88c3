#include "tieshard/cli/json_output.h"

#include "tieshard/cli/report.h"

namespace tieshard::cli {
namespace {

template <typename Item>
OrderedJson array_of(const std::vector<Item>& items) {
  OrderedJson array = OrderedJson::array();
  for (const Item& item : items) {
    array.push_back(to_json(item));
  }
  return array;
}

Code code_of(std::string_view text) {
#define TIESHARD_FIND(enumerator, code_text, rule_text) \
  if (text == (code_text)) {                            \
    return Code::enumerator;                            \
  }
  TIESHARD_ERROR_CODES(TIESHARD_FIND)
#undef TIESHARD_FIND
  throw InternalError(
      {.code = Code::kBug, .what = "a finding has a code that tieshard does not have", .why = std::string(text)});
}

} // namespace

OrderedJson to_json(const Diagnostic& diagnostic) {
  return {{"level", word(diagnostic.level)},
          {"code", id(diagnostic.code)},
          {"what", diagnostic.what},
          {"where", diagnostic.where},
          {"why", diagnostic.why},
          {"fix", diagnostic.fix}};
}

OrderedJson to_json(const std::vector<Diagnostic>& findings) {
  return array_of(findings);
}

Diagnostic diagnostic_from(const OrderedJson& document) {
  const std::string level = document.at("level");
  return {.level = level == word(Level::kNote)      ? Level::kNote
                   : level == word(Level::kWarning) ? Level::kWarning
                                                    : Level::kError,
          .code = code_of(document.at("code").get<std::string>()),
          .what = document.at("what"),
          .where = document.at("where"),
          .why = document.at("why"),
          .fix = document.at("fix")};
}

OrderedJson to_json(const TieGroup& group) {
  OrderedJson aliases = OrderedJson::array();
  for (const TieAlias& alias : group.aliases) {
    OrderedJson evidence = OrderedJson::array();
    for (const TieReason& reason : alias.reasons) {
      evidence.push_back({{"kind", id(reason.evidence)}, {"text", reason.text}});
    }
    aliases.push_back({{"name", alias.name}, {"evidence", evidence}});
  }
  return {{"canonical", group.canonical}, {"aliases", aliases}};
}

OrderedJson to_json(const std::vector<TieGroup>& groups) {
  return array_of(groups);
}

void print_json(const Stream& stream, const OrderedJson& document) {
  stream.text << document.dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
}

} // namespace tieshard::cli
