# `lockstep` is copied to machines that have a libc and nothing else, so the
# libraries that the control side uses go into it as archives. Tests, the trainer
# and sanitizer builds keep the shared ones: a target with the property
# LOCKSTEP_PORTABLE links archives, every other one what its libraries name.

# lockstep_archive(OF shared-name FILE libx.a PACKAGE libx-dev [LINK ...])
function(lockstep_archive)
  cmake_parse_arguments(ARG "" "OF;FILE;PACKAGE" "LINK" ${ARGN})
  string(MAKE_C_IDENTIFIER "${ARG_FILE}" name)
  find_library(LOCKSTEP_ARCHIVE_${name} NAMES ${ARG_FILE})
  if(NOT LOCKSTEP_ARCHIVE_${name})
    message(FATAL_ERROR
      "${ARG_FILE} was not found. Run 'make setup' or 'apt-get install "
      "${ARG_PACKAGE}', or pass -DLOCKSTEP_CONTROL=OFF.")
  endif()
  # As a target, so that what it needs comes after it.
  add_library(lockstep_archive_${name} STATIC IMPORTED GLOBAL)
  set_target_properties(lockstep_archive_${name} PROPERTIES
    IMPORTED_LOCATION ${LOCKSTEP_ARCHIVE_${name}}
    INTERFACE_LINK_LIBRARIES "${ARG_LINK}")
  set_property(GLOBAL PROPERTY "lockstep_archive_of_${ARG_OF}"
    lockstep_archive_${name})
endfunction()

if(LOCKSTEP_CONTROL AND NOT LOCKSTEP_SANITIZE)
  lockstep_archive(OF ZLIB::ZLIB FILE libz.a PACKAGE zlib1g-dev)
  lockstep_archive(OF PNG::PNG FILE libpng.a PACKAGE libpng-dev
    LINK lockstep_archive_libz_a m)
  lockstep_archive(OF OpenSSL::Crypto FILE libcrypto.a PACKAGE libssl-dev
    LINK Threads::Threads ${CMAKE_DL_LIBS})
  lockstep_archive(OF yaml-cpp FILE libyaml-cpp.a PACKAGE libyaml-cpp-dev)
  lockstep_archive(OF pcre2-8 FILE libpcre2-8.a PACKAGE libpcre2-dev)
  lockstep_archive(OF pugixml FILE libpugixml.a PACKAGE libpugixml-dev)
  lockstep_archive(OF zstd FILE libzstd.a PACKAGE libzstd-dev)
endif()

# What a library links for `name`: the archive in a portable target.
function(lockstep_link_name out name)
  get_property(archive GLOBAL PROPERTY "lockstep_archive_of_${name}")
  if(archive)
    set(${out}
      "$<IF:$<BOOL:$<TARGET_PROPERTY:LOCKSTEP_PORTABLE>>,${archive},${name}>"
      PARENT_SCOPE)
  else()
    set(${out} "${name}" PARENT_SCOPE)
  endif()
endfunction()

# Makes a program portable: only libc, libm and the loader stay shared.
function(lockstep_portable target)
  if(LOCKSTEP_SANITIZE)
    return()
  endif()
  set_target_properties(${target} PROPERTIES LOCKSTEP_PORTABLE ON)
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc
    -Wl,--gc-sections -Wl,--exclude-libs,ALL
    $<$<CONFIG:Release>:-s>)
endfunction()
