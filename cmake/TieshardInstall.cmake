# What `cmake --install` puts in place, and the targets that stand for all rooms. Included last: it needs the lists that
# tieshard_room and tieshard_program fill.
#
#   include/tieshard/...      headers            lib/libtieshard_<room>.a    rooms (those of the programs stay out)
#   bin/                      programs           lib/cmake/tieshard/         find_package(tieshard [COMPONENTS core runtime])
#   share/doc/tieshard/       documents          share/man, share/bash-completion, share/zsh, share/fish
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(room_targets GLOBAL PROPERTY TIESHARD_ROOM_TARGETS)
get_property(program_targets GLOBAL PROPERTY TIESHARD_PROGRAMS)
add_custom_target(programs DEPENDS ${program_targets})
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tieshard)
set(components core)
if(TIESHARD_RUNTIME)
  list(APPEND components runtime)
endif()

# tieshard::core and tieshard::runtime: every room of that floor.
foreach(component IN LISTS components)
  set(rooms ${room_targets})
  list(FILTER rooms INCLUDE REGEX "^tieshard_${component}_")
  add_library(tieshard_${component} INTERFACE)
  add_library(tieshard::${component} ALIAS tieshard_${component})
  set_target_properties(tieshard_${component} PROPERTIES EXPORT_NAME ${component})
  target_link_libraries(tieshard_${component} INTERFACE ${rooms})
  install(TARGETS tieshard_${component} ${rooms} EXPORT tieshard_${component}_targets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT tieshard_${component}_targets NAMESPACE tieshard:: DESTINATION ${package_dir})
endforeach()

if(TIESHARD_RUNTIME)
  # Said outright, since CMake leaves folders inside the source tree (.venv) out of what it finds by itself.
  set_target_properties(tieshard-runtime PROPERTIES INSTALL_RPATH ${TIESHARD_TORCH_ROOT}/lib)
endif()
install(TARGETS ${program_targets} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# Completions and man page, printed by the program that is installed.
function(tieshard_installs_output file destination)
  string(REPLACE ";" " " words "${ARGN}")
  install(CODE "
    set(folder \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/${destination}\")
    message(STATUS \"Installing: \$ENV{DESTDIR}\${folder}/${file}\")
    file(MAKE_DIRECTORY \"\$ENV{DESTDIR}\${folder}\")
    execute_process(COMMAND \"$<TARGET_FILE:tieshard>\" ${words}
      OUTPUT_FILE \"\$ENV{DESTDIR}\${folder}/${file}\" COMMAND_ERROR_IS_FATAL ANY)
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${folder}/${file}\")" COMPONENT shell)
endfunction()
tieshard_installs_output(tieshard bash-completion/completions completion bash)
tieshard_installs_output(_tieshard zsh/site-functions completion zsh)
tieshard_installs_output(tieshard.fish fish/vendor_completions.d completion fish)
tieshard_installs_output(tieshard.1 man/man1 man)

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/tieshardConfig.cmake.in ${PROJECT_BINARY_DIR}/tieshardConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tieshardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/tieshardConfig.cmake ${PROJECT_BINARY_DIR}/tieshardConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/TieshardFindTorch.cmake
  DESTINATION ${package_dir})
install(FILES README.md ARCHITECTURE.md CONTRIBUTING.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})

# A project outside of this tree, built against what is installed and run.
if(TIESHARD_DEVELOPER AND NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  foreach(component IN LISTS components)
    add_test(NAME install.consumer_${component}
      COMMAND ${CMAKE_COMMAND} -D BUILD=${PROJECT_BINARY_DIR} -D COMPONENT=${component}
        -P ${PROJECT_SOURCE_DIR}/tests/consumer/run.cmake)
    set_tests_properties(install.consumer_${component} PROPERTIES LABELS install TIMEOUT 600)
  endforeach()
endif()
