#include "tieshard/core/doctor/room_check.h"

#include <system_error>

#include "tieshard/core/base/process_memory.h"
#include "tieshard/core/base/units.h"

namespace tieshard {

Room room_at(const std::filesystem::path& directory) {
  std::error_code failed;
  const std::filesystem::space_info space = std::filesystem::space(directory, failed);
  return {.memory = available_bytes(), .disk = failed ? 0 : space.available, .disk_known = !failed};
}

void check_room(const std::filesystem::path& directory, const Need& need, const Room& room, FindingList& findings) {
  const std::uint64_t together = need.rank_bytes * static_cast<std::uint64_t>(need.ranks);
  if (room.memory > 0 && together > room.memory) {
    findings.add(Diagnostic{
        .level = Level::kNote,
        .code = Code::kHostMemory,
        .what = "a load needs more memory than this machine has free",
        .where = concat(need.ranks, need.ranks == 1 ? " rank" : " ranks", " on this machine"),
        .why = concat("expected at most ",
                      format_bytes(room.memory),
                      ", got ",
                      format_bytes(together),
                      ", ",
                      format_bytes(need.rank_bytes),
                      " a rank"),
        .fix = "use more ranks on more machines or a narrower --param-dtype; on another machine this may not hold"});
  }
  const bool no_export = need.export_bytes > room.disk;
  if (room.disk_known && (no_export || need.save_bytes > room.disk)) {
    findings.add(Diagnostic{
        .level = Level::kNote,
        .code = Code::kDiskFull,
        .what = "there is no room on the disk for what a run writes",
        .where = directory.string(),
        .why = concat("expected ",
                      format_bytes(no_export ? need.export_bytes : need.save_bytes),
                      " for ",
                      no_export ? "an export" : "a training checkpoint",
                      " (weights and AdamW's moments in float32: ",
                      format_bytes(need.save_bytes),
                      "), got ",
                      format_bytes(room.disk),
                      " free"),
        .fix = "let --out lie on another file system, or make room; --keep bounds how many checkpoints stay"});
  }
}

} // namespace tieshard
