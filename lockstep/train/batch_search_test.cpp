#include "lockstep/train/batch_search.h"

#include <gtest/gtest.h>

#include <csignal>
#include <new>
#include <thread>
#include <vector>

#include "lockstep/collective/factory.h"
#include "lockstep/train/error.h"
#include "lockstep/wire/rendezvous.h"

namespace lockstep::train {
namespace {

// A machine whose memory is a line: `base` and so much a sample.
class LineMeter : public MemoryMeter {
 public:
  LineMeter(double base, double slope, double limit)
      : base_(base), slope_(slope), limit_(limit) {}
  void reset() override { peak_ = base_; }
  uint64_t peak() override { return static_cast<uint64_t>(peak_); }
  uint64_t limit() const override { return static_cast<uint64_t>(limit_); }
  void run(int64_t size) {
    tried.push_back(size);
    const double need = base_ + fixed + slope_ * static_cast<double>(size);
    if (need > real) {
      throw std::bad_alloc();
    }
    peak_ = need;
  }
  double real = 1e18;  // where allocation itself fails
  double fixed = 0;    // that a trial takes however small it is
  std::vector<int64_t> tried;

 private:
  double base_, slope_, limit_;
  double peak_ = 0;
};

BatchFit search(
    LineMeter& meter,
    int64_t most,
    collective::Communicator* group = nullptr) {
  BatchSearchOptions options;
  options.most = most;
  return find_batch(
      [&meter](int64_t size) { meter.run(size); }, meter, group, options);
}

constexpr double kMega = 1e6;

TEST(BatchSearch, FindsTheLargestWithinAFewTrials) {
  for (const double slope : {.01, .3, 2., 17., 90., 400.}) {
    LineMeter meter(200 * kMega, slope * kMega, 4000 * kMega);
    const auto fit = search(meter, 1 << 20);
    const double exact = (4000 * .9 - 200) / slope;
    EXPECT_LE(static_cast<double>(fit.batch), exact) << slope;
    EXPECT_GE(
        static_cast<double>(fit.batch), std::min(exact - 8, exact * .97) - 1)
        << slope;
    EXPECT_LT(fit.trials, 16) << slope;
    EXPECT_EQ(fit.trials, static_cast<int>(meter.tried.size()));
    EXPECT_LE(fit.peak, 3600 * kMega);
    EXPECT_EQ(fit.limit, 4000 * kMega);
  }
}

// What is always there is no sign of a batch that fills the rest.
TEST(BatchSearch, FillsTheRoomThatTheModelLeaves) {
  for (const double share : {.5, .8, .95, .97, .985, .999}) {
    for (const bool deadly : {false, true}) {
      const double budget = .9 * 100'000 * kMega;
      LineMeter meter(share * budget, 17 * kMega, 100'000 * kMega);
      BatchSearchOptions options;
      options.most = 1 << 20;
      options.deadly = deadly;
      options.estimate = deadly ? 17 * kMega : 0;
      const auto fit = find_batch(
          [&meter](int64_t size) { meter.run(size); }, meter, nullptr, options);
      const double exact = (1 - share) * budget / (17 * kMega);
      EXPECT_LE(static_cast<double>(fit.batch), exact) << share;
      EXPECT_GE(
          static_cast<double>(fit.batch), std::min(exact - 8, exact * .97) - 1)
          << share;
      EXPECT_TRUE(fit.largest);
    }
  }
}

// What a search has found is not refused when it is asked for, though the peak
// is a little higher then; what is clearly more is, also where the model takes
// most of the memory.
TEST(BatchSearch, TakesWhatAnotherSearchHasFound) {
  for (const double base : {200., 2000., 3000., 3400.}) {
    LineMeter meter(base * kMega, kMega, 4000 * kMega);
    const auto found = search(meter, 1 << 20).batch;
    const auto ask = [&](int64_t batch) {
      LineMeter more(base * kMega, 1.04 * kMega, 4000 * kMega);
      BatchSearchOptions options;
      options.most = batch;
      options.asked = true;
      return find_batch(
                 [&](int64_t size) { more.run(size); }, more, nullptr, options)
          .batch;
    };
    EXPECT_EQ(ask(found), found) << base;
    EXPECT_LT(ask(found * 11 / 10), found * 11 / 10) << base;
  }
}

// Near the budget is not at the number that was asked for.
TEST(BatchSearch, TriesTheMostBeforeItStopsShortOfIt) {
  for (int64_t most = 170; most <= 225; ++most) {
    LineMeter meter(200 * kMega, 17 * kMega, 4000 * kMega);
    const auto exact = static_cast<int64_t>((4000 * .9 - 200) / 17);  // 200
    const auto fit = search(meter, most);
    if (most <= exact) {
      EXPECT_EQ(fit.batch, most);
    } else {
      EXPECT_LE(fit.batch, exact);
      EXPECT_GE(fit.batch, exact - 8);
    }
  }
}

TEST(BatchSearch, SurvivesRunningOutOfMemory) {
  // The machine has less than it says.
  LineMeter meter(200 * kMega, 2 * kMega, 4000 * kMega);
  meter.real = 1000 * kMega;
  const auto fit = search(meter, 100000);
  // 400 would be the last; the margin comes off what worked, twice.
  EXPECT_LE(fit.batch, 305);
  EXPECT_GE(fit.batch, 280);
  EXPECT_LE(fit.limit, 900 * kMega);
  EXPECT_GE(fit.limit, 850 * kMega);
  EXPECT_LE(fit.peak, .91 * fit.limit);
  EXPECT_LE(fit.trials, 17);
}

TEST(BatchSearch, NeverGoesAboveTheMost) {
  for (const int64_t most : {1, 3, 8, 63, 100, 4096}) {
    LineMeter meter(kMega, 1000, 4000 * kMega);
    const auto fit = search(meter, most);
    EXPECT_EQ(fit.batch, most);
    for (const int64_t size : meter.tried) {
      EXPECT_LE(size, most);
    }
  }
}

// Whoever goes beyond the limit is killed: no trial may, whether a sample takes
// up to twice what was estimated or a part of it.
TEST(BatchSearch, NeverRisksBeingKilled) {
  for (const double slope : {.01, 2., 30., 90., 400., 1700.}) {
    for (const double factor : {.55, 1., 4.}) {
      for (const double fixed : {0., 500.}) {
        LineMeter meter(200 * kMega, slope * kMega, 4000 * kMega);
        meter.fixed = fixed * kMega;
        BatchSearchOptions options;
        options.most = 1 << 20;
        options.deadly = true;
        options.estimate = factor * slope * kMega;
        const auto fit = find_batch(
            [&meter](int64_t size) { meter.run(size); },
            meter,
            nullptr,
            options);
        for (const int64_t size : meter.tried) {
          EXPECT_LE(200 + fixed + slope * static_cast<double>(size), 4000)
              << size << " of " << slope << " by " << factor;
        }
        const double exact = (4000 * .9 - 200 - fixed) / slope;
        EXPECT_LE(static_cast<double>(fit.batch), exact);
        EXPECT_GE(
            static_cast<double>(fit.batch),
            std::min(exact - 8, exact * .97) - 1)
            << slope << " by " << factor << " and " << fixed;
        EXPECT_GE(fit.batch, 1);
        EXPECT_LT(fit.trials, 16);
      }
    }
  }
}

TEST(BatchSearch, SaysWhenNotEvenOneFits) {
  LineMeter meter(200 * kMega, 5000 * kMega, 4000 * kMega);
  EXPECT_EQ(search(meter, 512).batch, 0);
  LineMeter tight(200 * kMega, 2000 * kMega, 4000 * kMega);
  EXPECT_EQ(search(tight, 512).batch, 1);
  EXPECT_NE(
      search(tight, 512).to_string(.1).find("batch 1: 2.0"), std::string::npos)
      << search(tight, 512).to_string(.1);
}

TEST(BatchSearch, CountsWhatTheLoaderHolds) {
  LineMeter meter(0, 1 * kMega, 1000 * kMega);
  BatchSearchOptions options;
  options.most = 10000;
  options.sample_bytes = 2 * kMega;
  const auto fit = find_batch(
      [&meter](int64_t size) { meter.run(size); }, meter, nullptr, options);
  EXPECT_LE(fit.batch, 300);
  EXPECT_GE(fit.batch, 288);
}

// One rank has half the memory, another runs out of it earlier than it says.
TEST(BatchSearch, RanksAgreeOnWhatFitsAllOfThem) {
  const int world = 3;
  auto rendezvous = wire::make_local_rendezvous();
  std::vector<BatchFit> fits(world);
  std::vector<std::vector<int64_t>> tried(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      collective::GroupOptions options;
      options.rank = rank;
      options.world_size = world;
      options.kind = "host";
      options.timeout = std::chrono::seconds(60);
      auto group = collective::make_communicator(options, *rendezvous);
      LineMeter meter(100 * kMega, kMega, (rank == 1 ? 2000 : 4000) * kMega);
      if (rank == 2) {
        meter.real = 1100 * kMega;
      }
      fits[rank] = search(meter, 100000, group.get());
      tried[rank] = meter.tried;
      group->barrier();
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_LE(fits[0].batch, 800);
  EXPECT_GE(fits[0].batch, 730);
  EXPECT_LE(fits[0].limit, 1100 * kMega);
  for (int rank = 1; rank < world; ++rank) {
    EXPECT_EQ(fits[rank].batch, fits[0].batch);
    EXPECT_EQ(fits[rank].peak, fits[0].peak);
    EXPECT_EQ(tried[rank], tried[0]);
  }
}

// Rank 1 is asked to stop in the second trial.
TEST(BatchSearch, ASignalEndsItOnAllRanks) {
  const int world = 2;
  auto rendezvous = wire::make_local_rendezvous();
  std::vector<int> codes(world);
  std::vector<int> tried(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      collective::GroupOptions group_options;
      group_options.rank = rank;
      group_options.world_size = world;
      group_options.kind = "host";
      group_options.timeout = std::chrono::seconds(60);
      auto group = collective::make_communicator(group_options, *rendezvous);
      LineMeter meter(100 * kMega, kMega, 4000 * kMega);
      BatchSearchOptions options;
      options.most = 100'000;
      options.stop_signal = [&] {
        return rank == 1 && meter.tried.size() == 2 ? SIGINT : 0;
      };
      try {
        find_batch(
            [&](int64_t size) { meter.run(size); },
            meter,
            group.get(),
            options);
      } catch (const TrainError& stopped) {
        codes[rank] = stopped.exit_code();
      }
      tried[rank] = static_cast<int>(meter.tried.size());
      group->barrier();
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(codes, (std::vector{128 + SIGTERM, 128 + SIGINT}));
  EXPECT_EQ(tried, (std::vector{2, 2}));
}

// Whoever ran out of memory once has less from then on (oneDNN keeps what it
// made for each shape): what is taken has worked last.
TEST(BatchSearch, StepsBackUntilItWorks) {
  LineMeter meter(100 * kMega, kMega, 100'000 * kMega);
  double real = 1000 * kMega;
  int64_t last = 0;
  BatchSearchOptions options;
  options.most = 10000;
  const auto fit = find_batch(
      [&](int64_t size) {
        meter.real = real;
        last = size;
        try {
          meter.run(size);
        } catch (...) {
          real -= 70 * kMega;
          throw;
        }
      },
      meter,
      nullptr,
      options);
  EXPECT_EQ(fit.batch, last);
  EXPECT_GT(fit.batch, 100);
  EXPECT_GT(fit.peak, 0);
  EXPECT_LE(fit.peak, real);
}

// Modes that keep less and less, as bytes a sample.
struct Modes {
  std::vector<double> slopes;
  double base = 140 * kMega;
  double limit = 2048 * kMega;
  double real = 1e18;
  // The mode that was taken, and its fit.
  ModeFit find(int64_t most) {
    size_t mode = 0;
    std::vector<LineMeter> meters;
    for (const double slope : slopes) {
      meters.emplace_back(base, slope, limit);
      meters.back().real = real;
    }
    // One meter, as of one machine, whose line depends on the mode.
    struct Switch : MemoryMeter {
      std::vector<LineMeter>& meters;
      size_t& mode;
      Switch(std::vector<LineMeter>& all, size_t& now)
          : meters(all), mode(now) {}
      void reset() override { meters[mode].reset(); }
      uint64_t peak() override { return meters[mode].peak(); }
      uint64_t limit() const override { return meters[mode].limit(); }
    } meter(meters, mode);
    BatchSearchOptions options;
    options.most = most;
    const auto found = find_mode(
        slopes.size(),
        [&](size_t next) { mode = next; },
        [&](int64_t size) { meters[mode].run(size); },
        meter,
        nullptr,
        options);
    EXPECT_EQ(mode, found.mode);
    EXPECT_LT(found.fit.trials, 20);
    return found;
  }
};

// A sample is tiny beside the budget: the search of each mode needs the room
// that a search from eight samples on would not have.
TEST(BatchSearch, ALaterModeGoesOnWhereTheOneBeforeEnded) {
  for (const double unit : {1e3, 1e4, 1e5, 1e6, 2e7}) {
    Modes modes{{2.4 * unit, 1.8 * unit, unit}};
    const double room = .9 * modes.limit - modes.base;
    const auto exact = [&](size_t mode) {
      return static_cast<int64_t>(room / modes.slopes[mode]);
    };
    // Each mode is taken for what only it, or one that keeps less, can.
    for (size_t mode = 0; mode < 3; ++mode) {
      const auto most = static_cast<int64_t>(.93 * exact(mode));
      const auto found = modes.find(most);
      EXPECT_EQ(found.mode, mode) << unit;
      EXPECT_EQ(found.fit.batch, most) << unit;
    }
    const auto found = modes.find(2 * exact(2));
    EXPECT_EQ(found.mode, 2u) << unit;
    EXPECT_LE(found.fit.batch, exact(2)) << unit;
    EXPECT_GE(found.fit.batch, .9 * exact(2) - 1) << unit;
  }
}

TEST(BatchSearch, AModeMayFitWhereTheOneBeforeDoesNotAtAll) {
  Modes modes{{3e9, 2e9, 1e8}};
  const auto found = modes.find(4);
  EXPECT_EQ(found.mode, 2u);
  EXPECT_EQ(found.fit.batch, 4);
  EXPECT_EQ((Modes{{3e9, 3e9, 3e9}}.find(4).fit.batch), 0);
}

TEST(BatchSearch, ModesShareTheirTrialsWhereMemoryEndsEarly) {
  Modes modes{{2.4e5, 1.8e5, 1e5}};
  modes.real = 700 * kMega;
  const auto found = modes.find(100'000);
  EXPECT_EQ(found.mode, 2u);
  EXPECT_GT(found.fit.batch, 3000);
  EXPECT_LE(found.fit.peak, modes.real);
}

// Trials are few: what is known to fit is not called the largest.
TEST(BatchSearch, SaysWhetherItsBatchIsTheLargest) {
  LineMeter meter(200 * kMega, 10, 4000 * kMega);
  BatchSearchOptions options;
  options.most = 1 << 20;
  options.max_trials = 3;
  const auto run = [&](int64_t size) { meter.run(size); };
  EXPECT_FALSE(find_batch(run, meter, nullptr, options).largest);
  options.max_trials = 19;
  EXPECT_TRUE(find_batch(run, meter, nullptr, options).largest);
}

// Each failure takes memory for good, so that nothing works any more.
TEST(BatchSearch, StepsBackWithinItsTrials) {
  LineMeter meter(100 * kMega, 1000, 100'000 * kMega);
  meter.real = 1000 * kMega;
  BatchSearchOptions options;
  options.most = 10'000'000;
  int64_t failed = 0;
  const auto fit = find_batch(
      [&](int64_t size) {
        try {
          meter.run(size);
        } catch (...) {
          meter.real = 0;
          failed = failed == 0 ? size : std::min(failed, size);
          throw;
        }
      },
      meter,
      nullptr,
      options);
  EXPECT_EQ(fit.batch, 0);
  EXPECT_EQ(fit.failed, failed);
  EXPECT_LT(fit.trials, 20);
}

TEST(BatchSearch, OtherFailuresAreNotHidden) {
  LineMeter meter(0, 1, 1000);
  BatchSearchOptions options;
  options.most = 4;
  EXPECT_THROW(
      find_batch(
          [](int64_t) { throw std::runtime_error("shapes differ"); },
          meter,
          nullptr,
          options),
      std::runtime_error);
}

}  // namespace
}  // namespace lockstep::train
