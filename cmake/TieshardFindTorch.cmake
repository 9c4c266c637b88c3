# Finds LibTorch and defines tieshard::torch, or leaves TIESHARD_TORCH_ROOT empty. Used by the build, and installed for
# find_package(tieshard).
#
# LibTorch is the folder that holds include/, lib/ and share/cmake/Torch. Looked for, in this order: TIESHARD_TORCH_ROOT,
# Torch_DIR, CMAKE_PREFIX_PATH, then the torch wheel of the active virtual environment, of TIESHARD_VENV (the build's own),
# and of the python3 on the PATH.
#
# The target is made here, without find_package(Torch): for a wheel that was built with CUDA that insists on the CUDA
# toolkit, which code that only uses the CPU does not need.
#
# For GPUs there is tieshard::torch_cuda besides, where LibTorch has libtorch_cuda.so and the headers of the CUDA runtime
# and of NCCL are found: in the nvidia wheels beside torch, in CUDA_HOME or in the toolkit's usual place. TIESHARD_CUDA=OFF
# leaves it out, ON insists on it.
set(TIESHARD_TORCH_ROOT "" CACHE PATH "LibTorch: the folder with include/, lib/ and share/cmake/Torch")

set(TIESHARD_CUDA AUTO CACHE STRING "Ranks on GPUs: AUTO (where LibTorch and headers have it), ON or OFF")

function(tieshard_find_torch_root)
  set(candidates ${TIESHARD_TORCH_ROOT})
  if(Torch_DIR)
    list(APPEND candidates ${Torch_DIR}/../../..)
  endif()
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    list(APPEND candidates ${prefix} ${prefix}/../..)
  endforeach()
  foreach(python IN ITEMS $ENV{VIRTUAL_ENV}/bin/python3 ${TIESHARD_VENV}/bin/python3 python3)
    execute_process(
      COMMAND ${python} -c
        "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND candidates ${package})
  endforeach()
  foreach(root IN LISTS candidates)
    if(EXISTS ${root}/share/cmake/Torch/TorchConfig.cmake AND EXISTS ${root}/lib/libtorch_cpu.so)
      get_filename_component(root ${root} ABSOLUTE)
      set(TIESHARD_TORCH_ROOT ${root} CACHE PATH "" FORCE)
      return()
    endif()
  endforeach()
  set(TIESHARD_TORCH_ROOT "" CACHE PATH "" FORCE)
endfunction()

tieshard_find_torch_root()
if(TIESHARD_TORCH_ROOT AND NOT TARGET tieshard::torch)
  add_library(tieshard::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(tieshard::torch INTERFACE
    ${TIESHARD_TORCH_ROOT}/include ${TIESHARD_TORCH_ROOT}/include/torch/csrc/api/include)
  target_link_libraries(tieshard::torch INTERFACE
    ${TIESHARD_TORCH_ROOT}/lib/libtorch.so ${TIESHARD_TORCH_ROOT}/lib/libtorch_cpu.so ${TIESHARD_TORCH_ROOT}/lib/libc10.so)
  # The wheel has c10d's Gloo backend; its header hides itself without this.
  target_compile_definitions(tieshard::torch INTERFACE USE_C10D_GLOO)
endif()

# Defines tieshard::torch_cuda, or says why not in TIESHARD_CUDA_MISSING.
function(tieshard_find_cuda)
  set(missing "")
  if(NOT TIESHARD_CUDA)
    set(missing "TIESHARD_CUDA is OFF")
  elseif(NOT EXISTS ${TIESHARD_TORCH_ROOT}/lib/libtorch_cuda.so)
    set(missing "LibTorch has no libtorch_cuda.so")
  else()
    set(wheels ${TIESHARD_TORCH_ROOT}/../nvidia)
    file(GLOB places ${wheels}/cu*/include ${wheels}/cuda_runtime/include)
    list(APPEND places $ENV{CUDA_HOME}/include /usr/local/cuda/include)
    find_path(TIESHARD_CUDA_INCLUDE cuda_runtime_api.h HINTS ${places})
    find_path(TIESHARD_NCCL_INCLUDE nccl.h HINTS ${wheels}/nccl/include ${places})
    if(NOT TIESHARD_CUDA_INCLUDE)
      set(missing "cuda_runtime_api.h was not found")
    elseif(NOT TIESHARD_NCCL_INCLUDE)
      set(missing "nccl.h was not found")
    endif()
  endif()
  set(TIESHARD_CUDA_MISSING "${missing}" PARENT_SCOPE)
  if(NOT missing)
    add_library(tieshard::torch_cuda INTERFACE IMPORTED GLOBAL)
    target_include_directories(tieshard::torch_cuda INTERFACE ${TIESHARD_CUDA_INCLUDE} ${TIESHARD_NCCL_INCLUDE})
    target_link_libraries(tieshard::torch_cuda INTERFACE
      ${TIESHARD_TORCH_ROOT}/lib/libtorch_cuda.so ${TIESHARD_TORCH_ROOT}/lib/libc10_cuda.so)
  endif()
endfunction()

if(TIESHARD_TORCH_ROOT AND NOT TARGET tieshard::torch_cuda)
  tieshard_find_cuda()
  if(TIESHARD_CUDA_MISSING AND TIESHARD_CUDA AND NOT TIESHARD_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "The build for GPUs cannot be made.\n"
      "  where: ${TIESHARD_TORCH_ROOT}: ${TIESHARD_CUDA_MISSING}\n"
      "  fix:   install a CUDA wheel of torch, whose dependencies have the headers, or set TIESHARD_CUDA=OFF")
  endif()
endif()
