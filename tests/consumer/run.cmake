# cmake -D BUILD=<build directory> -D COMPONENT=core|runtime -P run.cmake
#
# Installs BUILD into a new folder, copies the project beside this file to another, builds it there against what was
# installed, and runs it. Any failure ends the script with an error.
cmake_minimum_required(VERSION 3.25)
set(work ${BUILD}/consumer-${COMPONENT})
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work}/data)
file(COPY ${CMAKE_CURRENT_LIST_DIR}/ DESTINATION ${work}/source PATTERN run.cmake EXCLUDE)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)
run(${CMAKE_COMMAND} -S ${work}/source -B ${work}/build -D COMPONENT=${COMPONENT}
    -D CMAKE_BUILD_TYPE=Debug -D CMAKE_PREFIX_PATH=${work}/prefix)
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer ${work}/data)

# The installed programs run from where they are, too.
run(${work}/prefix/bin/tieshard --version)
if(EXISTS ${work}/prefix/bin/tieshard-runtime)
  run(${work}/prefix/bin/tieshard-runtime --help)
endif()

# Completions and the man page are what the installed program prints.
foreach(pair "bash-completion/completions/tieshard:completion;bash" "zsh/site-functions/_tieshard:completion;zsh"
             "fish/vendor_completions.d/tieshard.fish:completion;fish" "man/man1/tieshard.1:man")
  string(REPLACE ":" ";" pair "${pair}")
  list(POP_FRONT pair file)
  execute_process(COMMAND ${work}/prefix/bin/tieshard ${pair} OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${work}/prefix/share/${file} installed)
  if(printed STREQUAL "" OR NOT printed STREQUAL installed)
    message(FATAL_ERROR "share/${file} is not what the program prints")
  endif()
endforeach()
file(REMOVE_RECURSE ${work})
