#include "tieshard/runtime/mesh/agree.h"

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
  }
  const std::vector<std::string> messages = all_gather_text(mesh, message);
  if (failure) {
    std::rethrow_exception(failure);
  }
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    if (!messages[rank].empty()) {
      throw PeerError({.code = Code::kPeerFailed,
                       .what = "another rank failed first",
                       .where = concat(mesh.where(), ", stage ", stage),
                       .why = concat("rank ", rank, " says: ", messages[rank].substr(0, messages[rank].find('\n'))),
                       .fix = concat("mend what rank ", rank, " reports; this rank only followed")});
    }
  }
}

} // namespace tieshard
