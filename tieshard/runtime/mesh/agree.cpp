#include "tieshard/runtime/mesh/agree.h"

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/collectives.h"

namespace tieshard {

void agree(const DeviceMesh& mesh, std::string_view stage, const std::function<void()>& work) {
  std::exception_ptr failure;
  std::string message;
  try {
    work();
  } catch (const std::exception& error) {
    failure = std::current_exception();
    message = error.what();
    if (message.empty()) { // to the others an empty text means that all is well
      message = "an exception without a message";
    }
  }
  std::vector<std::string> messages;
  try {
    messages = all_gather_text(mesh, message, CollectivePurpose::named(concat("agree \"", stage, "\"")));
  } catch (const PeerError&) { // what this rank found itself says more than that the others are gone, or elsewhere
    if (failure) {
      std::rethrow_exception(failure);
    }
    throw;
  }
  const auto first = std::ranges::find_if(messages, [](const std::string& text) { return !text.empty(); });
  if (first == messages.end()) {
    return;
  }
  const auto first_rank = first - messages.begin();
  const bool reported_elsewhere = *first == message && first_rank < mesh.rank();
  if (failure && !reported_elsewhere) {
    std::rethrow_exception(failure);
  }
  throw PeerError({.code = Code::kPeerFailed,
                   .what = "another rank failed first",
                   .where = concat(mesh.where(), ", stage ", stage),
                   .why = concat("rank ",
                                 first_rank,
                                 reported_elsewhere ? " says the same: " : " says: ",
                                 first->substr(0, first->find('\n'))),
                   .fix = concat("mend what rank ", first_rank, " reports; this rank only followed")});
}

} // namespace tieshard
