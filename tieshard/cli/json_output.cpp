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
