#include "lockstep/fetch/curl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace lockstep::fetch {
namespace {

constexpr const char* kFile = "libcurl.so.4";

Error not_loaded() {
  const char* reason = ::dlerror();
  return Error(
             ErrorCode::kNotFound,
             fmt::format(
                 "downloads need {}: {}",
                 kFile,
                 reason == nullptr ? "it cannot be loaded" : reason))
      .with_fix("apt-get install libcurl4");
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

Result<CurlLibrary> load() {
  void* library = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  CurlLibrary curl;
  if (library == nullptr ||
      !find(library, "curl_global_init", curl.global_init) ||
      !find(library, "curl_easy_init", curl.easy_init) ||
      !find(library, "curl_easy_cleanup", curl.easy_cleanup) ||
      !find(library, "curl_easy_reset", curl.easy_reset) ||
      !find(library, "curl_easy_setopt", curl.easy_setopt) ||
      !find(library, "curl_easy_perform", curl.easy_perform) ||
      !find(library, "curl_easy_strerror", curl.easy_strerror) ||
      !find(library, "curl_slist_append", curl.slist_append) ||
      !find(library, "curl_slist_free_all", curl.slist_free_all)) {
    return not_loaded();
  }
  curl.global_init(CURL_GLOBAL_DEFAULT);
  return curl;
}

}  // namespace

Result<const CurlLibrary*> curl_library() {
  static const Result<CurlLibrary> library = load();
  if (!library) {
    return library.error();
  }
  return &*library;
}

}  // namespace lockstep::fetch
