// What tests/test_reach.py drives: reaches hosts side by side, then sends a
// folder and a program and runs a set-up there. Prints one JSON object.
//
//   reach_probe LOCKSTEP [--folder D] [--program P] [--setup CMD] HOST...

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/reach/content.h"
#include "lockstep/reach/transfer.h"

namespace {

using namespace lockstep;
using nlohmann::json;

struct Wishes {
  std::string folder, program, setup;
  reach::ProgramSet set;
};

Result<json> serve(reach::Session& session, const Wishes& wishes) {
  json done = {
      {"sent", session.was_sent()}, {"took", to_seconds(session.took())}};
  if (!wishes.folder.empty()) {
    reach::Sent sent;
    LOCKSTEP_ASSIGN(
        const os::Path path, reach::sync_folder(session, wishes.folder, &sent));
    done["folder"] = path.string();
    done["files"] = sent.files;
    done["removed"] = sent.removed;
    if (!wishes.setup.empty()) {
      std::string log;
      LOCKSTEP_TRY(
          reach::run_setup(
              session,
              path,
              wishes.setup,
              log,
              os::Deadline::after(std::chrono::seconds(60))));
      done["log"] = log;
    }
  }
  if (!wishes.program.empty()) {
    reach::Sent sent;
    LOCKSTEP_ASSIGN(
        const os::Path path, reach::send_program(session, wishes.set, &sent));
    done["program"] = path.string();
    done["blobs"] = sent.files;
  }
  return done;
}

}  // namespace

int main(int argc, char** argv) {
  reach::ReachOptions options;
  options.program = argc > 1 ? argv[1] : "";
  Wishes wishes;
  std::vector<std::string> hosts;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--folder" && i + 1 < argc) {
      wishes.folder = argv[++i];
    } else if (word == "--program" && i + 1 < argc) {
      wishes.program = argv[++i];
    } else if (word == "--setup" && i + 1 < argc) {
      wishes.setup = argv[++i];
    } else {
      hosts.push_back(word);
    }
  }
  if (!wishes.program.empty()) {
    auto set = reach::program_set(wishes.program, reach::lockstep_home());
    if (!set) {
      fmt::print(stderr, "{}\n", set.error().to_string());
      return 1;
    }
    wishes.set = std::move(*set);
  }
  const auto start = os::real_clock().now();
  auto sessions = reach::reach_all(hosts, options);
  std::vector<json> answers(hosts.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < hosts.size(); ++i) {
    threads.emplace_back([&, i] {
      auto done = sessions[i] ? serve(**sessions[i], wishes)
                              : Result<json>(sessions[i].error());
      answers[i] = done ? *done : json{{"error", done.error().to_string()}};
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  json all = {{"seconds", to_seconds(os::real_clock().now() - start)}};
  for (size_t i = 0; i < hosts.size(); ++i) {
    all[hosts[i]] = answers[i];
  }
  fmt::print("{}\n", all.dump(2));
  return 0;
}
