#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/id.h"
#include "lockstep/base/nearest.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/past_runs.h"
#include "lockstep/commands/table.h"
#include "lockstep/economics/plan.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/process.h"
#include "lockstep/record/plot.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct PlanOptions {
  std::vector<std::string> words;  // JOB.yaml key=value ...
  std::optional<std::string> max_duration, budget;
  std::string scaling = "weak", benches = "benches", out;
  std::vector<std::string> prices;  // NAME=USD
  std::optional<double> total_steps;
  int nodes = 0;  // most; 0: those measured
};

// All that the table and the files show.
struct PlanReport {
  std::string job;
  std::vector<economics::PlanOffer> offers;
  std::vector<std::string> sources;  // run directories the figures are from
  economics::PlanWork work;
  economics::PlanLimits limits;
  economics::Plan plan;
  std::vector<Comparison> comparisons;
  std::string verdict;
  os::Path folder;
};

Result<std::map<std::string, double>> given_prices(
    const std::vector<std::string>& words) {
  std::map<std::string, double> prices;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format("--price '{}' is not NAME=USD", word));
    }
    LOCKSTEP_ASSIGN(
        const Money price,
        parse_money(word.substr(equals + 1)).with_context("--price"));
    if (price <= Money()) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format("--price '{}': a price is above 0", word));
    }
    prices[word.substr(0, equals)] = price.dollars();
  }
  return prices;
}

// An iteration of all ranks; a program that does not tell counts as one a node.
double samples_of(const PastRun& run) {
  return run.figures.samples > 0 ? run.figures.samples : run.nodes;
}

// Machines that were tried with several numbers of ranks are told apart by it.
void name_by_ranks(std::vector<PastRun>& runs) {
  std::map<std::string, std::set<int>> ranks;
  for (const PastRun& run : runs) {
    ranks[run.machine].insert(run.ranks);
  }
  for (PastRun& run : runs) {
    if (ranks[run.machine].size() > 1) {
      run.machine += fmt::format(":{}", run.ranks);
    }
  }
}

// How a run went: its batch, an earlier phase, a drift.
void note_course(const PastRun& run, bool strong, economics::PlanOffer& offer) {
  const ProbeFigures& figures = run.figures;
  const double samples = samples_of(run);
  offer.samples_a_node = samples / (strong ? 1 : run.nodes);
  const double mean = figures.iterations->estimate.mean;
  const bool has_phase = figures.past_seconds > 0 && mean > 0;
  offer.early_samples = has_phase ? figures.past_steps * samples : 0;
  offer.early_ratio =
      has_phase ? figures.past_seconds / figures.past_steps / mean : 1;
  offer.drift = figures.iterations->drifting ? figures.iterations->drift : 0;
}

// Of all that is known about one machine.
economics::PlanOffer make_offer(
    const std::string& machine,
    const std::vector<const PastRun*>& runs,
    bool strong,
    int most_nodes,
    double price) {
  economics::PlanOffer offer;
  offer.machine.name = machine;
  // The newest run of each node count speaks for it.
  std::map<int, const PastRun*> by_nodes;
  for (const PastRun* run : runs) {
    by_nodes[run->nodes] = run;
    if (run->dollars_per_hour > 0) {
      offer.machine.dollars_per_hour = run->dollars_per_hour;
    }
    offer.end = run->end;
    offer.init = run->figures.init;
    if (const auto seen = epoch_end_estimate(run->figures)) {
      offer.epoch_end = *seen;
    }
    note_course(*run, strong, offer);
    // What was sent once is there: the quickest start speaks for the next.
    offer.machine.setup = run == runs.front()
                              ? run->setup
                              : std::min(offer.machine.setup, run->setup);
  }
  if (price > 0) {
    offer.machine.dollars_per_hour = price;
  }
  std::vector<economics::Split> splits;
  for (const auto& [nodes, run] : by_nodes) {
    const auto& estimate = run->figures.iterations->estimate;
    // A program that does not split its time computes all of it; what ranks of
    // one node say to each other stays with more nodes.
    const double communication =
        nodes > 1 ? std::min(run->figures.communication, estimate.mean) : 0;
    splits.push_back(
        {nodes, estimate.mean - communication, communication, estimate.spread});
    offer.most_nodes = std::max(offer.most_nodes, nodes);
  }
  offer.most_nodes = most_nodes > 0 ? most_nodes : offer.most_nodes;
  if (const auto model = economics::fit_scaling(splits, strong)) {
    offer.scaling = *model;
  }
  return offer;
}

Result<PlanReport> make_report(
    const PlanOptions& options,
    const Context& context) {
  if (context.has_program || options.words.empty()) {
    return Error(ErrorCode::kInvalidInput, "a plan needs a job file")
        .with_fix("lockstep plan JOB.yaml --max-duration 4h --budget 20");
  }
  const std::vector<std::string> overrides(
      options.words.begin() + 1, options.words.end());
  LOCKSTEP_ASSIGN(
      const launch::Job job,
      launch::load_job(options.words.front(), overrides, os::environment()));
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(const auto prices, given_prices(options.prices));
  PlanReport report;
  report.job = job.name;
  std::optional<Duration> duration = job.max_duration;
  if (options.max_duration) {
    LOCKSTEP_ASSIGN(
        duration,
        parse_duration(*options.max_duration).with_context("--max-duration"));
  }
  std::optional<Money> budget = job.budget;
  if (options.budget) {
    LOCKSTEP_ASSIGN(
        budget, parse_money(*options.budget).with_context("--budget"));
  }
  if (duration) {
    report.limits.max_seconds = to_seconds(*duration);
  }
  if (budget) {
    report.limits.budget = budget->dollars();
  }
  std::vector<os::Path> roots = bench_roots(options.benches);
  roots.emplace_back(settings.runs_dir);
  std::vector<PastRun> runs = find_past_runs(roots, job);
  name_by_ranks(runs);
  if (runs.empty()) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "nothing is known about this job: no probe of it under {}, "
                   "no run under {}",
                   options.benches,
                   settings.runs_dir))
        .with_fix(
            fmt::format(
                "lockstep bench {} --candidates a=0.40,b=0.20",
                options.words.front()));
  }
  std::map<std::string, std::vector<const PastRun*>> machines;
  std::optional<double> steps = options.total_steps;
  for (const PastRun& run : runs) {
    machines[run.machine].push_back(&run);
    report.sources.push_back(run.run.string());
    const double samples = samples_of(run);
    const auto total =
        options.total_steps ? options.total_steps : run.figures.total_steps;
    if (total) {
      report.work.samples = *total * samples;
      report.work.epoch_ends =
          std::max(report.work.epoch_ends, num_epoch_ends(run.figures, *total));
      steps = total;
    }
    const bool strong = options.scaling == "strong";
    report.work.samples_a_node = samples / (strong ? 1 : run.nodes);
  }
  if (!steps) {
    return Error(
               ErrorCode::kInvalidInput,
               "how many iterations the whole run has is not known: the "
               "program does not tell")
        .with_fix("give --total-steps N");
  }
  for (const auto& [machine, price] : prices) {
    if (!machines.contains(machine)) {
      std::vector<std::string> names;
      for (const auto& [name, known] : machines) {
        names.push_back(name);
      }
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "--price '{}': no run on it is known; {}",
              machine,
              suggest(machine, names)));
    }
  }
  for (const auto& [machine, known] : machines) {
    const auto price = prices.find(machine);
    report.offers.push_back(make_offer(
        machine,
        known,
        options.scaling == "strong",
        options.nodes,
        price == prices.end() ? 0 : price->second));
  }
  report.plan = economics::make_plan(report.offers, report.work, report.limits);
  report.verdict =
      economics::plan_verdict(report.plan, report.offers, report.limits);
  const os::Path kept = os::Path(settings.runs_dir) / "predictions.jsonl";
  const std::string identity = checksum_of(job_identity(job));
  report.comparisons =
      compare_predictions(read_predictions(kept), runs, identity);
  std::vector<KeptPrediction> made;
  for (const economics::PlanRow& row : report.plan.rows) {
    made.push_back(
        {os::real_clock().unix_seconds(),
         identity,
         report.offers[row.offer].machine.name,
         row.nodes,
         row.prediction.seconds.value,
         row.prediction.dollars.value});
  }
  LOCKSTEP_TRY(keep_predictions(kept, made));
  report.folder =
      fs::absolute(
          options.out.empty() ? os::Path("plans") / file_name_of(job.name)
                              : os::Path(options.out))
          .lexically_normal();
  return report;
}

std::string money_text(double dollars) {
  return format_money(Money::from_dollars(dollars));
}

std::string interval_text(const economics::Quantity& quantity, bool money) {
  const auto text = [&](double value) {
    return money ? money_text(value) : format_duration(from_seconds(value));
  };
  return fmt::format(
      "{} ({} to {})",
      text(quantity.value),
      text(quantity.low),
      text(quantity.high));
}

const Comparison* comparison_of(
    const PlanReport& report,
    const economics::PlanRow& row) {
  for (const Comparison& one : report.comparisons) {
    if (one.machine == report.offers[row.offer].machine.name &&
        one.nodes == row.nodes) {
      return &one;
    }
  }
  return nullptr;
}

std::string plan_text(const PlanReport& report) {
  Table table(
      {"machine",
       "nodes",
       "iteration",
       "samples/$",
       "time",
       "cost",
       "last prediction",
       "fits"});
  for (size_t i = 0; i < report.plan.rows.size(); ++i) {
    const economics::PlanRow& row = report.plan.rows[i];
    const Comparison* compared = comparison_of(report, row);
    std::string fits = !row.in_time     ? "too long"
                       : !row.in_budget ? "too dear"
                                        : "yes";
    fits += report.plan.cheapest == i ? ", cheapest" : "";
    fits += report.plan.fastest == i ? ", fastest" : "";
    fits += row.on_front ? ", on the front" : "";
    table.add(
        {report.offers[row.offer].machine.name,
         std::to_string(row.nodes),
         format_duration(from_seconds(row.iteration.mean)),
         row.prediction.priced ? fmt::format("{:.4g}", row.samples_per_dollar)
                               : "-",
         interval_text(row.prediction.seconds, false),
         row.prediction.priced ? interval_text(row.prediction.dollars, true)
                               : "-",
         compared != nullptr ? fmt::format("{:+.1f}%", 100 * compared->error())
                             : "-",
         fits});
  }
  std::string text = table.to_string() + "\n";
  for (const economics::PlanOffer& offer : report.offers) {
    if (offer.machine.dollars_per_hour <= 0) {
      text += fmt::format(
          "{}: no price is known: give --price {}=USD\n",
          offer.machine.name,
          offer.machine.name);
    }
  }
  return text + fmt::format(
                    "\nverdict    {}\ndirectory  {}\n",
                    report.verdict,
                    report.folder.string());
}

json quantity_json(const economics::Quantity& quantity) {
  return {
      {"value", quantity.value},
      {"low", quantity.low},
      {"high", quantity.high}};
}

json plan_json(const PlanReport& report) {
  json rows = json::array();
  for (const economics::PlanRow& row : report.plan.rows) {
    const Comparison* compared = comparison_of(report, row);
    rows.push_back(
        {{"machine", report.offers[row.offer].machine.name},
         {"nodes", row.nodes},
         {"iteration_seconds", row.iteration.mean},
         {"iterations", row.iterations},
         {"seconds", quantity_json(row.prediction.seconds)},
         {"dollars",
          row.prediction.priced ? quantity_json(row.prediction.dollars)
                                : json()},
         {"samples_per_dollar",
          row.prediction.priced ? json(row.samples_per_dollar) : json()},
         {"on_front", row.on_front},
         {"in_time", row.in_time},
         {"in_budget", row.in_budget},
         {"last_error",
          compared != nullptr ? json(compared->error()) : json()}});
  }
  const auto row_name = [&](std::optional<size_t> index) {
    if (!index) {
      return json();
    }
    const economics::PlanRow& row = report.plan.rows[*index];
    return json{
        {"machine", report.offers[row.offer].machine.name},
        {"nodes", row.nodes}};
  };
  return {
      {"job", report.job},
      {"rows", std::move(rows)},
      {"cheapest", row_name(report.plan.cheapest)},
      {"fastest", row_name(report.plan.fastest)},
      {"verdict", report.verdict},
      {"sources", report.sources},
      {"directory", report.folder.string()}};
}

// Time by cost: a line a machine over its node counts, and the front.
std::string plan_svg(const PlanReport& report) {
  std::vector<record::Series> series(report.offers.size());
  for (const economics::PlanRow& row : report.plan.rows) {
    if (!row.prediction.priced) {
      continue;
    }
    record::Series& one = series[row.offer];
    one.name = report.offers[row.offer].machine.name;
    one.x.push_back(row.prediction.dollars.value);
    one.y.push_back(row.prediction.seconds.value / 60);
    one.low.push_back(row.prediction.seconds.low / 60);
    one.high.push_back(row.prediction.seconds.high / 60);
  }
  std::erase_if(series, [](const auto& one) { return one.x.empty(); });
  record::Series front;
  front.name = "none is both cheaper and faster";
  front.reference = true;
  for (const size_t i : report.plan.front) {
    front.x.push_back(report.plan.rows[i].prediction.dollars.value);
    front.y.push_back(report.plan.rows[i].prediction.seconds.value / 60);
  }
  series.push_back(std::move(front));
  return record::plot_svg(
      series,
      {.title = report.job + ": time and cost of the whole run",
       .x_label = "dollars",
       .y_label = "minutes",
       .from_zero = true});
}

Result<int> run_plan(const PlanOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const PlanReport report, make_report(options, context));
  os::FileSystem& files = os::real_files();
  LOCKSTEP_TRY(files.make_directories(report.folder));
  const std::string text =
      plan_json(report).dump(2, ' ', false, json::error_handler_t::replace);
  LOCKSTEP_TRY(files.write_atomic(report.folder / "plan.json", text + "\n"));
  LOCKSTEP_TRY(
      files.write_atomic(report.folder / "plan.svg", plan_svg(report)));
  switch (context.format()) {
    case OutputFormat::kTable:
      std::fputs(plan_text(report).c_str(), stdout);
      break;
    case OutputFormat::kJson:
      std::puts(text.c_str());
      break;
    case OutputFormat::kQuiet:
      fmt::print("{}\n", report.folder.string());
      break;
  }
  std::fflush(stdout);
  constexpr int kNothingFits = 4;
  return report.plan.fastest || report.plan.rows.empty() ? 0 : kNothingFits;
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "plan", "predicted time and cost for each machine and node count");
  verb->footer(
      "From probes (lockstep bench) and past runs of the same job.\n\n"
      "Example:\n"
      "  lockstep plan JOB.yaml --max-duration 4h --budget 20");
  auto options = std::make_shared<PlanOptions>();
  PlanOptions& o = *options;
  verb->add_option("job", o.words, "job file, then key=value to set")
      ->type_name("JOB.yaml key=value");
  verb->add_option("--max-duration", o.max_duration, "the run must end within")
      ->type_name("D");
  verb->add_option("--budget", o.budget, "most dollars")->type_name("USD");
  verb->add_option("--nodes,--nnodes", o.nodes, "most; default: as measured")
      ->check(CLI::Range(1, 10000))
      ->type_name("N");
  verb->add_option(
          "--scaling",
          o.scaling,
          "weak: the batch of a rank stays; strong: that of all together")
      ->check(CLI::IsMember({"weak", "strong"}))
      ->type_name("S");
  verb->add_option(
          "--price", o.prices, "of a machine, dollars an hour and node")
      ->allow_extra_args(false)
      ->type_name("NAME=USD");
  verb->add_option(
          "--total-steps",
          o.total_steps,
          "iterations of the whole run, when the program does not tell")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  verb->add_option("--benches", o.benches, "folder of probes; default benches")
      ->type_name("DIR");
  verb->add_option("--out", o.out, "folder; default: plans/NAME")
      ->type_name("DIR");
  add_runs_dir(*verb, context);
  set_action(*verb, context, [&context, options]() {
    return run_plan(*options, context);
  });
}

}  // namespace lockstep::commands
