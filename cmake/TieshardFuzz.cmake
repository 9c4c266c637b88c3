# One libFuzzer program for each tests/fuzz/<name>_fuzz.cpp, as fuzz_<name>; the target `fuzzers` builds all of them.
# Needs clang and the preset "fuzz", which instruments the rooms too. tools/fuzz.sh runs them.
add_custom_target(fuzzers)
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/*_fuzz.cpp)
foreach(source IN LISTS fuzz_sources)
  get_filename_component(name ${source} NAME_WE)
  string(REGEX REPLACE "_fuzz$" "" name ${name})
  add_executable(fuzz_${name} ${source})
  target_link_libraries(fuzz_${name} PRIVATE tieshard::core_state tieshard::core_data tieshard::core_failures)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(fuzz_${name} PROPERTIES CXX_EXTENSIONS OFF RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  add_dependencies(fuzzers fuzz_${name})
endforeach()
