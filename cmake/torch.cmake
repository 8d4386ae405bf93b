# Finds LibTorch: LOCKSTEP_TORCH (a folder that holds share/cmake/Torch), or
# the wheel of LOCKSTEP_PYTHON. Never the distribution's own libtorch: Torch_DIR
# is pinned. Defines lockstep_torch (headers + libraries) and
# lockstep_torch_pch (the precompiled header every trainer library reuses).
if(NOT LOCKSTEP_TORCH)
  execute_process(
    COMMAND ${LOCKSTEP_PYTHON} -c
      "import importlib.util as u; print(list(u.find_spec('torch').submodule_search_locations)[0])"
    OUTPUT_VARIABLE LOCKSTEP_TORCH OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
endif()
if(NOT EXISTS "${LOCKSTEP_TORCH}/share/cmake/Torch/TorchConfig.cmake")
  message(FATAL_ERROR
    "LibTorch was not found (looked in '${LOCKSTEP_TORCH}'). Run 'make setup', "
    "set LOCKSTEP_TORCH to a LibTorch folder, or pass -DLOCKSTEP_TRAINER=OFF.")
endif()

# libstdc++ first: some wheels export parts of an older one (std::filesystem),
# which would shadow it and crash.
add_library(lockstep_torch INTERFACE)
# The fmt of the wheel, which has no compiled half for us (lockstep/base/fmt.cpp).
target_compile_definitions(lockstep_torch INTERFACE FMT_HEADER_ONLY=1)
if(LOCKSTEP_CUDA)
  set(Torch_DIR "${LOCKSTEP_TORCH}/share/cmake/Torch" CACHE PATH "" FORCE)
  # Else it runs a program to ask a GPU, which may not be there to build.
  if(NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
    set(TORCH_CUDA_ARCH_LIST 9.0)
  endif()
  find_package(Torch REQUIRED)
  # CMake 3.25.1 (Debian 12) does not know how nvcc is told of C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  # Torch's config appends its own standard to the flags; ours must stand.
  string(REGEX REPLACE "-std=[a-z+0-9]+" "" TORCH_CXX_FLAGS "${TORCH_CXX_FLAGS}")
  target_link_libraries(lockstep_torch INTERFACE stdc++ ${TORCH_LIBRARIES})
  separate_arguments(torch_flags NATIVE_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(lockstep_torch INTERFACE ${torch_flags})
else()
  # The libraries of the CPU alone, by name: a wheel with CUDA serves as well,
  # while its own config would ask for the CUDA toolkit. What libtorch_cpu itself
  # needs of CUDA it finds by its own path when it is loaded.
  foreach(library IN ITEMS c10 torch_cpu)
    add_library(lockstep_${library} SHARED IMPORTED)
    set_target_properties(lockstep_${library} PROPERTIES
      IMPORTED_LOCATION "${LOCKSTEP_TORCH}/lib/lib${library}.so")
  endforeach()
  target_include_directories(lockstep_torch SYSTEM INTERFACE
    "${LOCKSTEP_TORCH}/include" "${LOCKSTEP_TORCH}/include/torch/csrc/api/include")
  target_link_libraries(lockstep_torch INTERFACE
    stdc++ lockstep_torch_cpu lockstep_c10)
  target_link_options(lockstep_torch INTERFACE -Wl,--allow-shlib-undefined)
endif()

add_library(lockstep_torch_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/torch_pch.cpp)
target_link_libraries(lockstep_torch_pch PUBLIC lockstep_torch)
target_precompile_headers(lockstep_torch_pch PRIVATE
  <torch/torch.h> <fmt/format.h> <map> <string> <vector>)
