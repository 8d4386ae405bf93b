# The two words the build files speak: lockstep_library and lockstep_test.
# DEPS are the allowed edges between modules; tests/arrows_test.py reads the
# includes and fails on one that docs/architecture.md does not draw.

# All unit tests, and nothing else.
add_custom_target(unit_tests)

# lockstep_library(NAME base SRCS a.cpp DEPS os wire LINK fmt::fmt [TORCH])
# Makes the target lockstep_<name>. TORCH gives it LibTorch's headers (with the
# shared precompiled header); no other library sees them, because the wheel
# carries an fmt of its own.
function(lockstep_library)
  cmake_parse_arguments(ARG "TORCH" "NAME" "SRCS;DEPS;LINK" ${ARGN})
  set(target lockstep_${ARG_NAME})
  add_library(${target} STATIC ${ARG_SRCS})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(${target} PUBLIC lockstep_${dep})
  endforeach()
  foreach(name IN LISTS ARG_LINK)
    lockstep_link_name(linked ${name})
    target_link_libraries(${target} PUBLIC ${linked})
  endforeach()
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC lockstep_torch)
    target_precompile_headers(${target} REUSE_FROM lockstep_torch_pch)
  elseif(ARG_NAME IN_LIST LOCKSTEP_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON
      UNITY_BUILD_BATCH_SIZE 12)
  endif()
endfunction()

# lockstep_apart(a.cpp ...): sources that are never compiled together with
# others, because names of theirs stand in another one too.
function(lockstep_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# lockstep_test(NAME base SRCS a_test.cpp [DEPS os] [LINK x] [TORCH]
#               [PROPERTIES ...])
# One GoogleTest binary for a library: <name>_test, every case a ctest.
function(lockstep_test)
  cmake_parse_arguments(ARG "TORCH" "NAME" "SRCS;DEPS;LINK;PROPERTIES" ${ARGN})
  if(NOT LOCKSTEP_TESTS)
    return()
  endif()
  set(target ${ARG_NAME}_test)
  add_executable(${target} ${ARG_SRCS})
  add_dependencies(unit_tests ${target})
  target_link_libraries(${target} PRIVATE lockstep_${ARG_NAME}
                        GTest::gtest GTest::gmock GTest::gtest_main ${ARG_LINK})
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(${target} PRIVATE lockstep_${dep})
  endforeach()
  if(ARG_TORCH)
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/seeded.cpp)
    target_precompile_headers(${target} REUSE_FROM lockstep_torch_pch)
  else()
    target_compile_options(${target} PRIVATE -O1)  # a quarter less to compile
  endif()
  gtest_discover_tests(${target} TEST_PREFIX "${ARG_NAME}."
    DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 300 LABELS unit ${ARG_PROPERTIES})
endfunction()

# lockstep_pytest(FILE tests/test_x.py [TIMEOUT s] [LABELS ...] [SERIAL])
# One pytest file as one ctest; it drives the built binaries.
function(lockstep_pytest)
  cmake_parse_arguments(ARG "SERIAL" "FILE;TIMEOUT" "LABELS" ${ARGN})
  if(NOT LOCKSTEP_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  get_filename_component(name ${ARG_FILE} NAME_WE)
  add_test(NAME py.${name}
    COMMAND ${LOCKSTEP_PYTHON} -m pytest -q -p no:cacheprovider
            ${PROJECT_SOURCE_DIR}/${ARG_FILE}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(py.${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT}
    LABELS "integration;${ARG_LABELS}"
    ENVIRONMENT "LOCKSTEP_BUILD=${PROJECT_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1")
  if(ARG_SERIAL)
    set_tests_properties(py.${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# Until every module has landed, one without a build file is passed over.
macro(lockstep_folder folder)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${folder}/CMakeLists.txt)
    add_subdirectory(${folder})
  endif()
endmacro()
macro(lockstep_modules)
  foreach(module ${ARGN})
    lockstep_folder(lockstep/${module})
  endforeach()
endmacro()
