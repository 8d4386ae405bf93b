#include "lockstep/collective/group_fixture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "lockstep/collective/host_group.h"
#include "lockstep/collective/shared_memory.h"

namespace lockstep::collective {
namespace {

GroupOptions options_of(const GroupCase& group, int rank) {
  GroupOptions options;
  options.rank = rank;
  options.world_size = group.size;
  options.kind = "host";
  options.group = "test";
  options.timeout = group.timeout;
  options.key.fill(7);
  if (rank == group.size - 1 && !group.key_of_last.empty()) {
    options.key.fill(static_cast<uint8_t>(group.key_of_last[0]));
  }
  options.advertise_host = "127.0.0.1";
  switch (group.mode) {
    case Mode::kThreads:
    case Mode::kProcesses:
      options.host_identity = "a";
      break;
    case Mode::kRing:
      options.host_identity = fmt::format("host {}", rank);
      break;
    case Mode::kHosts:
      options.host_identity = fmt::format("host {}", rank % 2);
      break;
    case Mode::kBlocks:
      options.host_identity =
          fmt::format("host {}", rank < (group.size + 1) / 2 ? 0 : 1);
      break;
  }
  // Small, because every thread maps every other's under sanitizers too.
  options.memory = Memory::create(size_t{256} << 20);
  return options;
}

void run_rank(
    const GroupCase& group,
    int rank,
    wire::Rendezvous& rendezvous,
    const Body& body) {
  try {
    auto communicator =
        make_host_communicator(options_of(group, rank), rendezvous);
    body(*communicator);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
}

void run_threads(const GroupCase& group, const Body& body) {
  auto rendezvous = wire::make_local_rendezvous();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.size; ++rank) {
    threads.emplace_back(
        [&, rank] { run_rank(group, rank, *rendezvous, body); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

[[noreturn]] void run_child(
    const GroupCase& group,
    int rank,
    int address_pipe,
    const Body& body) {
  // Not to outlive the test, whatever happens.
  alarm(120);
  uint16_t port = 0;
  if (read(address_pipe, &port, sizeof port) == sizeof port) {
    Key key{};
    auto rendezvous = wire::connect_rendezvous(
        os::real_network(),
        {"127.0.0.1", port, ""},
        key,
        os::Deadline::after(std::chrono::seconds(20)));
    if (rendezvous) {
      run_rank(group, rank, **rendezvous, body);
    } else {
      ADD_FAILURE() << rendezvous.error().to_string();
    }
  } else {
    ADD_FAILURE() << "no address";
  }
  std::fflush(nullptr);
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

void run_processes(
    const GroupCase& group,
    const Body& body,
    const std::function<bool(int)>& may_die) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow a fork";
#endif
  // Children first: a process with threads must not fork.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < group.size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(ends[1]);
      run_child(group, rank, ends[0], body);
    }
    children.push_back(child);
  }
  auto server = wire::RendezvousServer::start(
      os::real_network(), {"127.0.0.1", 0, ""}, Key{});
  if (server) {
    const uint16_t port = (*server)->address().port;
    for (int rank = 0; rank < group.size; ++rank) {
      EXPECT_EQ(write(ends[1], &port, sizeof port), ssize_t{sizeof port});
    }
  } else {
    ADD_FAILURE() << server.error().to_string();
  }
  close(ends[1]);
  close(ends[0]);
  for (int rank = 0; rank < group.size; ++rank) {
    int status = 0;
    waitpid(children[static_cast<size_t>(rank)], &status, 0);
    const bool expected = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL &&
                          may_die && may_die(rank);
    EXPECT_TRUE(expected || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        << "rank " << rank << " ended with status " << status;
  }
}

}  // namespace

std::string to_string(Mode mode) {
  switch (mode) {
    case Mode::kThreads:
      return "threads";
    case Mode::kProcesses:
      return "processes";
    case Mode::kRing:
      return "ring";
    case Mode::kHosts:
      return "hosts";
    case Mode::kBlocks:
      return "blocks";
  }
  return "";
}

void run_group(
    const GroupCase& group,
    const Body& body,
    const std::function<bool(int)>& may_die) {
  if (group.mode == Mode::kProcesses || group.mode == Mode::kBlocks) {
    run_processes(group, body, may_die);
  } else {
    run_threads(group, body);
  }
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const CollectiveError& error) {
    return error.what();
  }
}

}  // namespace lockstep::collective
