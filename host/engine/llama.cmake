# Included by llama.cpp's CMake (CMAKE_PROJECT_INCLUDE in .cargo/config.toml). Its own sources include the same headers again and
# again: compiled sixteen to a unit, as llama.cpp compiles its models, they take half the time. llama-kv-cache-dsv4.cpp stays
# alone: it defines a function of the same name as another file. After an edit: `cargo clean --release -p llama-cpp-sys-2`.
function(camshaft_unite_sources)
    get_target_property(sources llama SOURCES)
    list(FILTER sources INCLUDE REGEX "^(llama|unicode)[a-z0-9-]*\\.cpp$")
    list(REMOVE_ITEM sources llama-kv-cache-dsv4.cpp)
    list(TRANSFORM sources PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/src/")
    set_source_files_properties(${sources} TARGET_DIRECTORY llama PROPERTIES SKIP_UNITY_BUILD_INCLUSION OFF)
endfunction()
# Older ones cannot defer, and compile each file alone.
if(PROJECT_NAME STREQUAL "llama.cpp" AND NOT CMAKE_VERSION VERSION_LESS 3.19)
    cmake_language(DEFER CALL camshaft_unite_sources)
endif()
