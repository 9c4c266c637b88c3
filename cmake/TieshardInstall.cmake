# What `cmake --install` puts in place, and the targets that stand for all of it. Included last: it needs the lists that
# tieshard_room and tieshard_program fill.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(room_targets GLOBAL PROPERTY TIESHARD_ROOM_TARGETS)
get_property(program_targets GLOBAL PROPERTY TIESHARD_PROGRAMS)
add_custom_target(programs DEPENDS ${program_targets})
