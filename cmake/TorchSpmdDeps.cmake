# Abseil for everything; GoogleTest for the tests; LibTorch only for the half that needs it.
find_package(absl QUIET)
if(NOT absl_FOUND)
  if(NOT TORCH_SPMD_FETCH_DEPS)
    message(FATAL_ERROR
      "torch_spmd needs Abseil. On Debian: apt-get install libabsl-dev. "
      "Elsewhere configure with -DTORCH_SPMD_FETCH_DEPS=ON to fetch and build it.")
  endif()
  include(FetchContent)
  set(ABSL_PROPAGATE_CXX_STD ON)
  FetchContent_Declare(absl
    GIT_REPOSITORY https://github.com/abseil/abseil-cpp.git
    GIT_TAG 20240722.0)
  FetchContent_MakeAvailable(absl)
endif()

if(TORCH_SPMD_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR
      "The C++ tests need GoogleTest. On Debian: apt-get install libgtest-dev libgmock-dev, "
      "or configure with -DTORCH_SPMD_TESTS=OFF.")
  endif()
  include(GoogleTest)
endif()

if(TORCH_SPMD_TORCH)
  find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
            "import torch; print(torch.__version__); print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE torch_probe OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing)
  if(torch_missing)
    message(FATAL_ERROR "torch_spmd builds against an installed torch; "
      "install torch==2.13.0 into ${Python3_EXECUTABLE} first.")
  endif()
  string(REPLACE "\n" ";" torch_probe "${torch_probe}")
  list(GET torch_probe 0 TORCH_SPMD_TORCH_VERSION)
  list(GET torch_probe 1 torch_prefix)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_minor "${TORCH_SPMD_TORCH_VERSION}")
  if(torch_minor VERSION_LESS 2.11 OR torch_minor VERSION_GREATER 2.13)
    message(FATAL_ERROR "torch_spmd supports torch 2.11 to 2.13; "
      "found ${TORCH_SPMD_TORCH_VERSION}. Install torch==2.13.0.")
  endif()
  list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
  find_package(Torch REQUIRED)
  find_library(TORCH_PYTHON_LIBRARY torch_python PATHS "${TORCH_INSTALL_PREFIX}/lib" NO_DEFAULT_PATH
               REQUIRED)
endif()
