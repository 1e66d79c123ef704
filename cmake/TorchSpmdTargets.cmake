# spmd_library(<folder> DEPS <folders…> ABSL <targets…> ROOMS <folders…> [TORCH])
#   One static library per folder of csrc, from all its .cc files. DEPS are the only folders it may
#   include (tools/check_layers.py compares); TORCH folders also see LibTorch. ROOMS are folders in
#   it, each of which includes only those before it.
function(spmd_library folder)
  cmake_parse_arguments(ARG "TORCH" "" "DEPS;ABSL;ROOMS" ${ARGN})
  string(REPLACE "/" "_" target "spmd_${folder}")
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc
                                      ${CMAKE_CURRENT_SOURCE_DIR}/*/*.cc)
  if(sources)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${PROJECT_SOURCE_DIR})
  foreach(dep ${ARG_DEPS})
    string(REPLACE "/" "_" dep_target "spmd_${dep}")
    target_link_libraries(${target} ${scope} ${dep_target})
  endforeach()
  foreach(dep ${ARG_ABSL})
    target_link_libraries(${target} ${scope} absl::${dep})
  endforeach()
  if(ARG_TORCH)
    target_link_libraries(${target} ${scope} ${TORCH_LIBRARIES})
  endif()
  if(sources)
    spmd_compile_options(${target})
    spmd_unity(${target} ${sources})
    if(ARG_TORCH)
      # at::parallel_for is a template that becomes OpenMP in our code.
      target_compile_options(${target} PRIVATE -fopenmp)
      spmd_precompile_shared(${target} SPMD_TORCH_PCH ${SPMD_CORE_HEADERS} ${SPMD_TORCH_HEADERS})
    else()
      spmd_precompile_shared(${target} SPMD_CORE_PCH ${SPMD_CORE_HEADERS})
    endif()
  endif()
endfunction()

# Most of a file's compile time is reading these.
set(SPMD_CORE_HEADERS
  <absl/container/flat_hash_map.h> <absl/container/inlined_vector.h> <absl/status/statusor.h>
  <absl/strings/str_cat.h> <absl/strings/str_join.h> <absl/types/span.h>
  <algorithm> <cmath> <functional> <limits> <memory> <optional> <string> <utility> <vector>)
set(SPMD_TORCH_HEADERS
  <ATen/Functions.h> <ATen/core/dispatch/Dispatcher.h> <ATen/core/ivalue.h> <torch/library.h>)

# spmd_precompile_shared(<target> <property> <headers…>)
#   One precompiled header for all targets of a kind: the first one makes it.
function(spmd_precompile_shared target property)
  get_property(maker GLOBAL PROPERTY ${property})
  if(maker)
    target_precompile_headers(${target} REUSE_FROM ${maker})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
    set_property(GLOBAL PROPERTY ${property} ${target})
  endif()
endfunction()

# spmd_python_module(<folder> DEPS <folders…>)
#   The extension module _C from a folder's .cc files. It finds LibTorch beside the package, wherever
#   both are installed.
function(spmd_python_module folder)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  Python3_add_library(_C MODULE WITH_SOABI ${sources})
  target_include_directories(_C PRIVATE ${PROJECT_SOURCE_DIR})
  foreach(dep ${ARG_DEPS})
    string(REPLACE "/" "_" dep_target "spmd_${dep}")
    target_link_libraries(_C PRIVATE ${dep_target})
  endforeach()
  target_link_libraries(_C PRIVATE ${TORCH_LIBRARIES} ${TORCH_PYTHON_LIBRARY})
  set_target_properties(_C PROPERTIES BUILD_WITH_INSTALL_RPATH ON
                                      INSTALL_RPATH "$ORIGIN/../../torch/lib")
  spmd_compile_options(_C)
  spmd_unity(_C ${sources})
  if(NOT TORCH_SPMD_UNITY)
    target_precompile_headers(_C PRIVATE ${SPMD_CORE_HEADERS} <torch/csrc/utils/pybind.h>)
  endif()
endfunction()

# spmd_test(<folder> DEPS <folders…> [TORCH])
#   One test binary from the .cc files of tests/cpp/<folder> and of its sub-folders, and one test of
#   CTest that runs all its cases. For some of them: build/…/tests/cpp/spmd_<folder>_test
#   --gtest_filter=….
function(spmd_test folder)
  cmake_parse_arguments(ARG "TORCH" "" "DEPS" ${ARGN})
  string(REPLACE "/" "_" name "spmd_${folder}_test")
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc
                                      ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*/*.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  foreach(dep ${ARG_DEPS})
    string(REPLACE "/" "_" dep_target "spmd_${dep}")
    target_link_libraries(${name} PRIVATE ${dep_target})
  endforeach()
  target_link_libraries(${name} PRIVATE GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    SPMD_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden")
  spmd_compile_options(${name})
  spmd_unity(${name} ${sources})
  target_compile_options(${name} PRIVATE -O0)  # to compile them takes longer than to run them
  set(test_headers <gmock/gmock.h> <gtest/gtest.h>)
  if(ARG_TORCH)
    spmd_precompile_shared(${name} SPMD_TORCH_TEST_PCH ${SPMD_CORE_HEADERS} ${SPMD_TORCH_HEADERS}
                           ${test_headers})
  else()
    spmd_precompile_shared(${name} SPMD_TEST_PCH ${SPMD_CORE_HEADERS} ${test_headers})
  endif()
  add_test(NAME ${folder} COMMAND ${name})
endfunction()

# spmd_unity(<target> <sources…>)
#   With TORCH_SPMD_UNITY, the files of each folder are compiled as one: most of a file's compile time
#   is instantiating templates that its neighbours instantiate, too. So names in anonymous namespaces
#   are unique within a folder. Files with options of their own are compiled alone.
function(spmd_unity target)
  if(NOT TORCH_SPMD_UNITY)
    return()
  endif()
  # Relative paths, with CMake 4, let ccache serve other checkouts.
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP
                                             UNITY_BUILD_RELOCATABLE ON)
  foreach(source ${ARGN})
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(folder ${folder} NAME)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder})
  endforeach()
endfunction()

function(spmd_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-unused-parameter
                                           -Wno-missing-field-initializers)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A known false alarm about moved absl::InlinedVectors.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  endif()
  if(TORCH_SPMD_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(TORCH_SPMD_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TORCH_SPMD_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${TORCH_SPMD_SANITIZE})
  endif()
endfunction()
