#include "tests/fuzz/driver.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "lockstep/os/clock.h"
#include "tests/fuzz/mutate.h"

extern "C" {
// Of the sanitizers' run time.
void __sanitizer_set_death_callback(void (*callback)());
extern const char __executable_start;
}

namespace lockstep::fuzz {
namespace {

constexpr unsigned kHangSeconds = 20;
constexpr size_t kMapSize = 1 << 16;

std::bitset<kMapSize> reached;
bool reached_new = false;

// What runs now, for the handlers: they may not allocate.
const char* input_data = nullptr;
size_t input_size = 0;
char save_path[4096] = "";

void save_input() {
  if (input_data == nullptr) {
    return;
  }
  int file = ::open(save_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file >= 0) {
    ssize_t written = ::write(file, input_data, input_size);
    const char* message = written == static_cast<ssize_t>(input_size)
                              ? "\nthe input is saved as "
                              : "\nthe input could not be saved as ";
    written = ::write(2, message, std::strlen(message));
    written = ::write(2, save_path, std::strlen(save_path));
    written = ::write(2, "\n", 1);
    ::close(file);
  }
  input_data = nullptr;
}

void on_signal(int number) {
  const char* message = number == SIGALRM ? "\nan input hangs" : "\naborted";
  ssize_t written = ::write(2, message, std::strlen(message));
  (void)written;
  save_input();
  ::_exit(1);
}

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

struct Options {
  double seconds = 5;
  uint64_t seed = 1;
  std::string corpus;
  std::string save = ".";
  std::vector<std::string> files;
};

bool parse_options(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (!word.starts_with("--")) {
      options.files.push_back(word);
      continue;
    }
    if (i + 1 == argc) {
      return false;
    }
    std::string value = argv[++i];
    if (word == "--seconds") {
      options.seconds = std::strtod(value.c_str(), nullptr);
    } else if (word == "--seed") {
      options.seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (word == "--corpus") {
      options.corpus = value;
    } else if (word == "--save") {
      options.save = value;
    } else {
      return false;
    }
  }
  return true;
}

std::string read_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Run {
 public:
  Run(const Target& target, Options options)
      : target_(target), options_(std::move(options)) {}

  int all() {
    if (!options_.files.empty()) {
      for (const std::string& file : options_.files) {
        once(read_whole(file));
      }
      return report();
    }
    load_corpus();
    Mutator mutator(options_.seed, target_.dictionary, target_.max_size);
    os::Deadline deadline = os::Deadline::after(from_seconds(options_.seconds));
    while (!deadline.passed()) {
      const std::string& parent = pick(mutator);
      const std::string& other = pick(mutator);
      std::string input = mutator.mutate(parent, other);
      if (once(input)) {
        corpus_.push_back(std::move(input));
      }
    }
    return report();
  }

 private:
  void load_corpus() {
    std::vector<std::filesystem::path> paths;
    if (!options_.corpus.empty()) {
      for (const auto& entry :
           std::filesystem::directory_iterator(options_.corpus)) {
        paths.push_back(entry.path());
      }
    }
    std::sort(paths.begin(), paths.end());
    corpus_.emplace_back();
    for (const auto& path : paths) {
      corpus_.push_back(read_whole(path));
    }
    seeds_ = corpus_.size() - 1;
    for (const std::string& seed : corpus_) {
      once(seed);
    }
  }

  // Mostly young ones: they reach what the old ones do not.
  const std::string& pick(Mutator& mutator) {
    size_t recent = std::min<size_t>(corpus_.size(), 64);
    if (mutator.below(2) == 0) {
      return corpus_[corpus_.size() - 1 - mutator.below(recent)];
    }
    return corpus_[mutator.below(corpus_.size())];
  }

  // True when the input reached new code.
  bool once(const std::string& input) {
    // A copy of the exact size on the heap: the sanitizer guards its ends.
    auto exact = std::make_unique_for_overwrite<char[]>(input.size());
    std::copy(input.begin(), input.end(), exact.get());
    std::string path = fmt::format(
        "{}/crash-{}-{:016x}", options_.save, target_.name, hash_of(input));
    *fmt::format_to_n(save_path, sizeof(save_path) - 1, "{}", path).out = '\0';
    input_size = input.size();
    input_data = exact.get();
    reached_new = false;
    ::alarm(kHangSeconds);
    target_.run(std::string_view(exact.get(), input.size()));
    ::alarm(0);
    input_data = nullptr;
    ++count_;
    return reached_new;
  }

  int report() const {
    fmt::print(
        "fuzz_{}: {} inputs, {} seeds, {} kept, {} places reached, no "
        "failure\n",
        target_.name,
        count_,
        seeds_,
        corpus_.size(),
        reached.count());
    // Without coverage or seeds the run would prove little.
    bool sound = !options_.files.empty() || (reached.any() && seeds_ > 0);
    if (!sound) {
      fmt::print("fuzz_{}: no coverage or no seeds\n", target_.name);
    }
    return sound ? 0 : 1;
  }

  const Target& target_;
  Options options_;
  std::vector<std::string> corpus_;
  size_t seeds_ = 0;
  uint64_t count_ = 0;
};

}  // namespace

void expect(bool holds, const char* promise) {
  if (!holds) {
    fmt::print(stderr, "\nbroken promise: {}\n", promise);
    std::abort();
  }
}

int fuzz_main(int argc, char** argv, const Target& target) {
  Options options;
  if (!parse_options(argc, argv, options)) {
    fmt::print(
        stderr,
        "usage: {} [--seconds S] [--seed N] [--corpus DIR] [--save DIR] | "
        "FILE...\n",
        argv[0]);
    return 2;
  }
  ::signal(SIGABRT, on_signal);
  ::signal(SIGALRM, on_signal);
  __sanitizer_set_death_callback(save_input);
  return Run(target, std::move(options)).all();
}

}  // namespace lockstep::fuzz

// Called by instrumented code at every edge. Relative to the program's start,
// so that address randomisation does not change what counts as new.
extern "C" void __sanitizer_cov_trace_pc() {
  auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0)) -
               reinterpret_cast<uintptr_t>(&__executable_start);
  size_t slot = (place ^ (place >> 16)) % lockstep::fuzz::kMapSize;
  if (!lockstep::fuzz::reached[slot]) {
    lockstep::fuzz::reached[slot] = true;
    lockstep::fuzz::reached_new = true;
  }
}

// A reader that believes a length it read would ask for this much.
extern "C" const char* __asan_default_options() {
  return "max_allocation_size_mb=1024:detect_stack_use_after_return=0";
}
