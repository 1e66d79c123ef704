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
endif()

if(TORCH_SPMD_TORCH)
  # OLDEST, NEWEST and RECOMMENDED versions of torch.
  file(STRINGS torch_spmd/_versions.py torch_versions REGEX "^[A-Z]+ = ")
  foreach(line ${torch_versions})
    string(REGEX MATCH "^([A-Z]+) = \"(.*)\"" line "${line}")
    set(torch_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
  endforeach()
  find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
            "import torch, os; print(torch.__version__); print(os.path.dirname(torch.__file__)); print(int(torch.compiled_with_cxx11_abi()))"
    OUTPUT_VARIABLE torch_probe OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing)
  if(torch_missing)
    message(FATAL_ERROR "torch_spmd builds against an installed torch; "
      "install torch==${torch_RECOMMENDED} into ${Python3_EXECUTABLE} first.")
  endif()
  string(REPLACE "\n" ";" torch_probe "${torch_probe}")
  list(GET torch_probe 0 TORCH_SPMD_TORCH_VERSION)
  list(GET torch_probe 1 TORCH_INSTALL_PREFIX)
  list(GET torch_probe 2 torch_new_abi)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_minor "${TORCH_SPMD_TORCH_VERSION}")
  if(torch_minor VERSION_LESS torch_OLDEST)
    message(FATAL_ERROR "torch_spmd needs torch ${torch_OLDEST} or later; "
      "found ${TORCH_SPMD_TORCH_VERSION}. Install torch==${torch_RECOMMENDED}.")
  elseif(torch_minor VERSION_GREATER torch_NEWEST)
    message(WARNING "torch_spmd is tested with torch ${torch_OLDEST} to ${torch_NEWEST}, "
      "and this is ${TORCH_SPMD_TORCH_VERSION}; it may work, and tests/python finds what does not.")
  endif()
  # Not find_package(Torch): that of a CUDA build asks for a CUDA toolkit, of which nothing here needs
  # a header.
  foreach(name torch torch_cpu c10 torch_python)
    find_library(TORCH_SPMD_LIB_${name} ${name} PATHS "${TORCH_INSTALL_PREFIX}/lib"
                 NO_DEFAULT_PATH REQUIRED)
  endforeach()
  add_library(spmd_libtorch INTERFACE)
  target_include_directories(spmd_libtorch SYSTEM INTERFACE
    ${TORCH_INSTALL_PREFIX}/include ${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include)
  target_compile_definitions(spmd_libtorch INTERFACE _GLIBCXX_USE_CXX11_ABI=${torch_new_abi})
  # `torch` and `torch_cpu` register ops when loaded: they are needed although few symbols are used.
  target_link_libraries(spmd_libtorch INTERFACE
    ${TORCH_SPMD_LIB_torch} ${TORCH_SPMD_LIB_torch_cpu} ${TORCH_SPMD_LIB_c10})
  set(TORCH_LIBRARIES spmd_libtorch)
  set(TORCH_PYTHON_LIBRARY ${TORCH_SPMD_LIB_torch_python})
endif()
