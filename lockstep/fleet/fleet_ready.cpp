// From launched to ready: machines answer, their timers run, they are set up.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/cloud/failure.h"
#include "lockstep/fetch/sigv4.h"
#include "lockstep/fleet/work.h"

namespace lockstep::fleet {
namespace {

using nlohmann::json;

constexpr int kMostRetries = 2;
constexpr Duration kOneTry = std::chrono::seconds(15);

// Once for each content; a step that failed runs again.
std::string once_script(const std::string& step) {
  const std::string script = setup_script(step);
  const std::string hash = fetch::sha256_hex(script).substr(0, 16);
  return fmt::format(
      "folder=\"$HOME/.lockstep-setup\"; mkdir -p \"$folder\" || exit 1\n"
      "[ ! -e \"$folder/{0}\" ] || exit 0\n"
      "cat > \"$folder/{0}.sh\" <<'LOCKSTEP_STEP_{0}'\n{1}\n"
      "LOCKSTEP_STEP_{0}\n"
      "shell=sh; command -v bash >/dev/null && shell=bash\n"
      "$shell \"$folder/{0}.sh\" </dev/null 2>&1 && : > \"$folder/{0}\"\n",
      hash,
      script);
}

// A machine that is gone while it is waited for; `is_over`: the end that budget
// or max_duration gave it is there.
Error ended_early(
    const cloud::Instance& machine,
    const std::string& name,
    bool is_over) {
  Error error(
      ErrorCode::kUnavailable,
      fmt::format(
          "{} ({}) ended before it was ready{}{}{}",
          name,
          machine.id,
          is_over ? ": its time by budget or max_duration was over" : "",
          machine.reason.empty() ? "" : ": ",
          machine.reason));
  return is_over ? std::move(error).with_fix(
                       "raise them: a boot alone takes about a minute")
                 : error;
}

}  // namespace

StayAwake::StayAwake(const FleetOptions& options, Fleet::Work& work) {
  // With a clock that stands still nothing goes idle.
  if (options.clock != &os::real_clock()) {
    return;
  }
  thread_ = std::thread([this, &options, &work] {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(
        lock, work.cluster.idle / 3, [&] { return is_over_; })) {
      std::vector<Node> nodes;
      {
        const std::lock_guard of_work(work.mutex);
        for (const Fleet::Work::Slot& slot : work.slots) {
          if (slot.ready && slot.node) {
            nodes.push_back(*slot.node);
          }
        }
      }
      lock.unlock();
      // One that cannot be reached is not to be kept.
      (void)renew_leases(
          *options.shell,
          nodes,
          work.cluster.idle,
          os::Deadline::after(kOneTry))
          .has_value();
      lock.lock();
    }
  });
}

StayAwake::~StayAwake() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

Result<void> Fleet::wait_ready(Work& work) {
  const StayAwake awake(options_, work);
  std::atomic<bool> give_up = false;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::thread> threads;
  std::vector<bool> asked(work.slots.size());
  Journal& journal = *options_.journal;
  const auto fail = [&](Work::Slot& slot, Error error) {
    const std::lock_guard lock(work.mutex);
    slot.failed = std::move(error);
  };
  // The slot may have got another machine meanwhile.
  const auto is_current = [&](size_t index, const Node& node) {
    const std::lock_guard lock(work.mutex);
    const Work::Slot& slot = work.slots[index];
    return slot.node && !slot.failed &&
           slot.node->instance.id == node.instance.id;
  };
  // Until it answers, its time is over, or nobody waits.
  const auto ask = [&](size_t index, Node node, double until) {
    Work::Slot& slot = work.slots[index];
    std::string words = "no answer";
    while (!give_up && is_current(index, node)) {
      auto lease = look_at_lease(
          *options_.shell, node, os::Deadline::after(kOneTry, *options_.clock));
      if (!is_current(index, node)) {
        break;
      }
      if (lease) {
        cloud::Tags tags = {{std::string(kTimerTag), "runs"}};
        if (node.price_known) {
          tags[std::string(kHourlyTag)] =
              fmt::format("{:.6f}", node.hourly.dollars());
        }
        Result<void> told;
        const auto step =
            journal.begin("confirm", node.name, {{"id", node.instance.id}});
        told = step ? options_.provider->set_tags({node.instance.id}, tags)
                    : Result<void>(step.error());
        if (told) {
          told = journal.done(*step);
        }
        if (!told) {
          fail(slot, std::move(told.error()));
        } else {
          const std::lock_guard lock(work.mutex);
          if (slot.node && slot.node->instance.id == node.instance.id) {
            slot.ready = true;
            tags.merge(slot.node->instance.tags);
            slot.node->instance.tags = tags;
          }
        }
        break;
      }
      words = lease.error().to_string();
      if (options_.clock->unix_seconds() >= until) {
        fail(
            slot,
            Error(
                ErrorCode::kUnavailable,
                fmt::format(
                    "{} ({}, {}) did not answer ssh within {}: {}",
                    node.name,
                    node.instance.id,
                    node.address(),
                    format_duration(work.cluster.ssh_timeout),
                    words))
                .with_fix(
                    "look at the security group, the subnet's route and the "
                    "image, or raise ssh_timeout"));
        break;
      }
      std::unique_lock lock(mutex);
      if (options_.clock == &os::real_clock()) {
        changed.wait_for(lock, options_.pause / 2, [&] { return +give_up; });
      } else {
        lock.unlock();
        options_.clock->sleep_for(options_.pause);
      }
    }
    changed.notify_all();
  };
  const auto end_threads = [&] {
    give_up = true;
    changed.notify_all();
    for (std::thread& thread : threads) {
      thread.join();
    }
    threads.clear();
  };
  Result<void> result;
  while (true) {
    if (is_stopped()) {
      result = Error(ErrorCode::kInterrupted, "interrupted");
      break;
    }
    auto listed = options_.provider->instances(selection());
    if (!listed) {
      result = Error(std::move(listed.error()));
      break;
    }
    std::vector<size_t> fresh, again;
    bool is_waiting = false;
    {
      const std::lock_guard lock(work.mutex);
      for (size_t i = 0; i < work.slots.size(); ++i) {
        Work::Slot& slot = work.slots[i];
        if (!slot.node || slot.failed) {
          continue;
        }
        const auto found = std::ranges::find(
            *listed, slot.node->instance.id, &cloud::Instance::id);
        if (found != listed->end()) {
          const cloud::Tags tags = slot.node->instance.tags;
          slot.node->instance = *found;
          slot.node->instance.tags.insert(tags.begin(), tags.end());
          if (!found->is_live()) {
            // Another one would end as soon.
            const bool is_over =
                work.end > 0 && cloud_time() >= work.end - kShutdownSeconds;
            slot.failed = ended_early(*found, slot.name, is_over);
            if (!is_over && !slot.ready && slot.retries < kMostRetries) {
              again.push_back(i);
            }
            slot.ready = false;
            continue;
          }
        }
        if (slot.ready) {
          continue;
        }
        is_waiting = true;
        if (!asked[i] && !slot.node->address().empty() &&
            slot.node->instance.state == cloud::InstanceState::kRunning) {
          fresh.push_back(i);
        } else if (!asked[i]) {
          // Never running: the controller's time-out is all that ends it.
          const double since = slot.node->instance.launched > 0
                                   ? slot.node->instance.launched
                                   : cloud_time();
          if (cloud_time() - since > to_seconds(work.cluster.ssh_timeout)) {
            slot.failed = Error(
                ErrorCode::kUnavailable,
                fmt::format(
                    "{} ({}) did not start within {}",
                    slot.name,
                    slot.node->instance.id,
                    format_duration(work.cluster.ssh_timeout)));
          }
        }
      }
    }
    // One that the cloud took back at once gets another place.
    for (const size_t i : again) {
      Work::Slot& slot = work.slots[i];
      say(slot.failed->message());
      const auto& places = work.plan.groups[slot.group].places;
      const size_t from = slot.next_place < places.size() ? slot.next_place : 0;
      ++slot.retries;
      {
        const std::lock_guard lock(work.mutex);
        slot.node.reset();
        slot.failed.reset();
      }
      asked[i] = false;
      if (auto done = launch_node(work, i, from); !done) {
        fail(slot, std::move(done.error()));
      } else {
        is_waiting = true;
      }
    }
    if (!fresh.empty()) {
      std::vector<Node> nodes;
      {
        const std::lock_guard lock(work.mutex);
        for (const Work::Slot& slot : work.slots) {
          if (slot.node && !slot.failed && !slot.node->address().empty()) {
            nodes.push_back(*slot.node);
          }
        }
      }
      if (options_.addressed) {
        if (auto told = options_.addressed(nodes); !told) {
          result = std::move(told);
          break;
        }
      }
      const double until =
          options_.clock->unix_seconds() + to_seconds(work.cluster.ssh_timeout);
      for (const size_t i : fresh) {
        asked[i] = true;
        threads.emplace_back(ask, i, *work.slots[i].node, until);
      }
    }
    if (!is_waiting) {
      break;
    }
    if (options_.clock == &os::real_clock()) {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, options_.pause);
    } else if (threads.empty()) {
      options_.clock->sleep_for(options_.pause);
    } else {
      // Those who ask move a clock that does not move by itself.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  end_threads();
  LOCKSTEP_TRY(std::move(result));
  // Enough without those that failed? They are given back either way.
  std::vector<std::string> lost;
  std::optional<Error> first;
  for (Work::Slot& slot : work.slots) {
    if (slot.failed) {
      if (slot.node) {
        lost.push_back(slot.node->instance.id);
      }
      if (!first) {
        first = slot.failed;
      }
      say(slot.failed->to_string());
    }
  }
  for (size_t g = 0; g < work.cluster.groups.size(); ++g) {
    if (work.alive(g) < work.cluster.groups[g].minimum) {
      return first ? Error(std::move(*first))
                   : Error(ErrorCode::kUnavailable, "too few machines");
    }
  }
  LOCKSTEP_TRY(end_machines(lost));
  for (Work::Slot& slot : work.slots) {
    if (slot.failed) {
      slot.node.reset();
      slot.failed.reset();
    }
  }
  return {};
}

Result<void> Fleet::set_up(Work& work) {
  const StayAwake awake(options_, work);
  const double start = options_.clock->unix_seconds();
  side_by_side(work.slots.size(), work.slots.size(), [&](size_t i) {
    Work::Slot& slot = work.slots[i];
    const NodeGroup& group = work.cluster.groups[slot.group];
    if (!slot.ready || !slot.node) {
      return;
    }
    const auto run = [&]() -> Result<void> {
      // The end may be nearer than when the machine was launched.
      if (slot.was_there && work.end > 0) {
        LOCKSTEP_TRY(options_.shell->run(
            *slot.node,
            lease_end_script(work.end - kShutdownSeconds),
            os::Deadline::after(kOneTry, *options_.clock)));
      }
      if (group.setup.empty()) {
        return {};
      }
      LOCKSTEP_ASSIGN(
          const int step,
          options_.journal->begin("setup", slot.name, group.setup.size()));
      for (size_t number = 0; number < group.setup.size(); ++number) {
        if (is_stopped()) {
          return Error(ErrorCode::kInterrupted, "interrupted");
        }
        const Duration left =
            work.cluster.setup_timeout -
            from_seconds(options_.clock->unix_seconds() - start);
        auto done = options_.shell->run(
            *slot.node,
            once_script(group.setup[number]),
            os::Deadline::after(
                std::max(left, Duration(std::chrono::seconds(1))),
                *options_.clock));
        if (!done) {
          return Error(std::move(done.error()))
              .with_context(
                  fmt::format("{}: set-up step {}", slot.name, number + 1));
        }
      }
      return options_.journal->done(step);
    };
    if (auto done = run(); !done) {
      const std::lock_guard lock(work.mutex);
      slot.failed = std::move(done.error());
    } else if (!group.setup.empty()) {
      say(fmt::format("{}: set up", slot.name));
    }
  });
  for (Work::Slot& slot : work.slots) {
    if (slot.failed) {
      return Error(std::move(*slot.failed));
    }
  }
  return {};
}

}  // namespace lockstep::fleet
