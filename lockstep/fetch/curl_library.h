#pragma once

// libcurl, loaded when a transfer is wanted, so that `lockstep` starts without
// it and runs on nodes that do not have it. Loaded once and kept for the life
// of the process; safe from any thread.

#include <curl/curl.h>

#include "lockstep/base/result.h"

namespace lockstep::fetch {

// The functions that we use, as <curl/curl.h> declares them.
struct CurlLibrary {
  decltype(&curl_global_init) global_init = nullptr;
  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_easy_reset) easy_reset = nullptr;
  CURLcode (*easy_setopt)(CURL*, CURLoption, ...) = nullptr;
  decltype(&::curl_easy_perform) easy_perform = nullptr;
  decltype(&::curl_easy_strerror) easy_strerror = nullptr;
  decltype(&::curl_slist_append) slist_append = nullptr;
  decltype(&::curl_slist_free_all) slist_free_all = nullptr;
};

// kNotFound, with the package to install, when it cannot be loaded.
Result<const CurlLibrary*> curl_library();

}  // namespace lockstep::fetch
