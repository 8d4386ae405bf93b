#include "lockstep/launch/agent_protocol.h"

#include <fmt/format.h>

#include <limits>
#include <type_traits>

#include "lockstep/launch/cbor.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr int kAnyRank = std::numeric_limits<int>::min();
constexpr int kMostSignal = 64;

int64_t number_of(os::Instant instant) {
  return instant.time_since_epoch().count();
}

// Of another machine: far from where sums of two overflow.
os::Instant read_instant(Reader& reader, const char* key) {
  constexpr int64_t kMost = int64_t{1} << 61;
  return os::Instant(Duration(reader.integer(key, 0, kMost)));
}

template <class... Parts>
struct Overload : Parts... {
  using Parts::operator()...;
};
template <class... Parts>
Overload(Parts...) -> Overload<Parts...>;

json report_map(const Report& report) {
  return std::visit(
      Overload{
          [](const RankStarted& one) -> json {
            return {{"kind", "started"}, {"rank", one.rank}, {"pid", one.pid}};
          },
          [](const RankRefused& one) -> json {
            return {
                {"kind", "refused"},
                {"rank", one.rank},
                {"reason", one.reason}};
          },
          [](const RankExited& one) -> json {
            return {
                {"kind", "exited"},
                {"rank", one.rank},
                {"pid", one.pid},
                {"keeper", one.keeper},
                {"batch", one.batch},
                {"ended", number_of(one.ended)},
                {"spoke", number_of(one.spoke)},
                {"code", one.status.code},
                {"signal", one.status.signal},
                {"out_of_memory", one.out_of_memory},
                {"was_stopped", one.was_stopped},
                {"last_lines", one.last_lines}};
          },
          [](const RankEvent& one) -> json {
            return {{"kind", "event"}, {"line", one.line}};
          },
          [](const RankOutput& one) -> json {
            return {{"kind", "output"}, {"rank", one.rank}, {"line", one.line}};
          },
          [](const RankPlace& one) -> json {
            return {
                {"kind", "place"},
                {"rank", one.rank},
                {"state", one.state},
                {"stack", one.stack},
                {"missing", one.missing}};
          },
          [](const NodeIdle&) -> json { return {{"kind", "idle"}}; },
          [](const NodeLost& one) -> json {
            return {
                {"kind", "lost"},
                {"reason", one.reason},
                {"since", number_of(one.since)}};
          },
          [](const NodeNotice& one) -> json {
            return {
                {"kind", "notice"},
                {"notice", one.kind},
                {"at", one.at},
                {"action", one.action}};
          }},
      report);
}

Result<Report> read_report(const json& map) {
  Reader reader(map);
  const std::string kind = reader.text("kind");
  Report report = NodeIdle{};
  if (kind == "started") {
    report = RankStarted{reader.number("rank", kAnyRank), reader.number("pid")};
  } else if (kind == "refused") {
    report =
        RankRefused{reader.number("rank", kAnyRank), reader.text("reason")};
  } else if (kind == "exited") {
    RankExited exit;
    exit.rank = reader.number("rank", kAnyRank);
    exit.pid = reader.number("pid");
    exit.keeper = reader.number("keeper");
    exit.batch = reader.number("batch");
    exit.ended = read_instant(reader, "ended");
    exit.spoke = read_instant(reader, "spoke");
    exit.status.code = reader.number("code");
    exit.status.signal =
        static_cast<int>(reader.integer("signal", 0, kMostSignal));
    exit.out_of_memory = reader.flag("out_of_memory");
    exit.was_stopped = reader.flag("was_stopped");
    exit.last_lines = reader.texts("last_lines");
    report = std::move(exit);
  } else if (kind == "event") {
    RankEvent event;
    event.line = reader.text("line");
    LOCKSTEP_ASSIGN(event.event, wire::parse_event(event.line));
    report = std::move(event);
  } else if (kind == "output") {
    report = RankOutput{reader.number("rank", kAnyRank), reader.text("line")};
  } else if (kind == "place") {
    report = RankPlace{
        reader.number("rank", kAnyRank),
        reader.text("state"),
        reader.text("stack"),
        reader.text("missing")};
  } else if (kind == "lost") {
    NodeLost lost;
    lost.reason = reader.text("reason");
    lost.since = read_instant(reader, "since");
    report = std::move(lost);
  } else if (kind == "notice") {
    report = NodeNotice{
        reader.text("notice"), reader.real("at"), reader.text("action")};
  } else if (kind != "idle") {
    reader.wrong("kind");
  }
  if (!reader.good()) {
    return reader.error();
  }
  return report;
}

json command_map(const RankCommand& command) {
  return {
      {"rank", command.rank},
      {"argv", command.argv},
      {"environment", command.environment},
      {"directory", command.directory.string()},
      {"log", command.log.string()},
      {"events", command.events.string()},
      {"show", command.show},
      {"iteration_pattern", command.iteration_pattern},
      {"epoch_pattern", command.epoch_pattern},
      {"after", command.after}};
}

Result<StartRequest> read_start(Reader& reader) {
  StartRequest start;
  start.generation = reader.number("generation");
  start.stop_signal =
      static_cast<int>(reader.integer("stop_signal", 1, kMostSignal));
  start.orphan_grace = reader.duration("orphan_grace");
  for (const json& one : reader.list("commands")) {
    Reader part(one);
    RankCommand command;
    command.rank = part.number("rank", kSetupRank);
    command.argv = part.texts("argv");
    command.environment = part.pairs("environment");
    command.directory = part.text("directory");
    command.log = part.text("log");
    command.events = part.text("events");
    command.show = part.flag("show");
    command.iteration_pattern = part.text("iteration_pattern");
    command.epoch_pattern = part.text("epoch_pattern");
    command.after = part.texts("after");
    if (!part.good()) {
      return part.error();
    }
    start.commands.push_back(std::move(command));
  }
  return start;
}

Result<Welcome> read_welcome(Reader& reader) {
  Welcome welcome;
  welcome.lease = reader.duration("lease");
  welcome.generation = reader.number("generation", -1);
  welcome.heard = reader.count("heard");
  for (const json& one : reader.list("logs")) {
    Reader part(one);
    const int rank = part.number("rank", kSetupRank);
    welcome.logs[rank] = part.count("size");
    if (!part.good()) {
      return part.error();
    }
  }
  return welcome;
}

Result<Reports> read_reports(Reader& reader) {
  Reports reports;
  reports.generation = reader.number("generation", -1);
  reports.first = reader.count("first");
  reports.clock = read_instant(reader, "clock");
  for (const json& one : reader.list("reports")) {
    LOCKSTEP_ASSIGN(Report report, read_report(one));
    reports.reports.push_back(std::move(report));
  }
  return reports;
}

// The value, unless the reader or a part of it found something wrong.
template <class Message, class T>
Result<Message> judged(const Reader& reader, Result<T>&& value) {
  if (!reader.good()) {
    return reader.error();
  }
  if (!value) {
    return Error(std::move(value.error()));
  }
  return Message(std::move(*value));
}

Beat read_beat(Reader& reader) {
  Beat beat;
  beat.time = reader.real("time");
  beat.heard = reader.count("heard");
  beat.clock = read_instant(reader, "clock");
  return beat;
}

json beat_map(const Beat& beat) {
  return {
      {"type", "beat"},
      {"time", beat.time},
      {"heard", beat.heard},
      {"clock", number_of(beat.clock)}};
}

Error unknown(const std::string& type) {
  return Error(
      ErrorCode::kCorrupt,
      fmt::format("a message has the unknown type '{}'", type.substr(0, 32)));
}

}  // namespace

std::string encode(const AgentMessage& message) {
  return to_cbor(
      std::visit(
          Overload{
              [](const Join& join) -> json {
                return {
                    {"type", "join"},
                    {"version", join.version},
                    {"node", join.node},
                    {"session", join.session},
                    {"host", join.host},
                    {"cores", join.cores},
                    {"gpus", join.gpus},
                    {"interface", join.interface},
                    {"own_address", join.own_address},
                    {"head_address", join.head_address},
                    {"time", join.time}};
              },
              [](const Beat& beat) { return beat_map(beat); },
              [](const Reports& reports) -> json {
                json list = json::array();
                for (const Report& report : reports.reports) {
                  list.push_back(report_map(report));
                }
                return {
                    {"type", "reports"},
                    {"generation", reports.generation},
                    {"first", reports.first},
                    {"clock", number_of(reports.clock)},
                    {"reports", std::move(list)}};
              },
              [](const LogBytes& bytes) -> json {
                return {
                    {"type", "bytes"},
                    {"generation", bytes.generation},
                    {"rank", bytes.rank},
                    {"offset", bytes.offset},
                    {"data", bytes.data}};
              },
              [](const LogRest& rest) -> json {
                return {
                    {"type", "rest"},
                    {"generation", rest.generation},
                    {"rank", rest.rank},
                    {"size", rest.size}};
              }},
          message));
}

std::string encode(const HeadMessage& message) {
  return to_cbor(
      std::visit(
          Overload{
              [](const Welcome& welcome) -> json {
                json logs = json::array();
                for (const auto& [rank, size] : welcome.logs) {
                  logs.push_back({{"rank", rank}, {"size", size}});
                }
                return {
                    {"type", "welcome"},
                    {"lease", welcome.lease.count()},
                    {"generation", welcome.generation},
                    {"heard", welcome.heard},
                    {"logs", std::move(logs)}};
              },
              [](const Refuse& refuse) -> json {
                return {{"type", "refuse"}, {"reason", refuse.reason}};
              },
              [](const Beat& beat) { return beat_map(beat); },
              [](const StartRequest& start) -> json {
                json commands = json::array();
                for (const RankCommand& command : start.commands) {
                  commands.push_back(command_map(command));
                }
                return {
                    {"type", "start"},
                    {"generation", start.generation},
                    {"stop_signal", start.stop_signal},
                    {"orphan_grace", start.orphan_grace.count()},
                    {"commands", std::move(commands)}};
              },
              [](const EndRanks& end) -> json {
                return {
                    {"type", "end"},
                    {"signal", end.signal},
                    {"grace", end.grace.count()}};
              },
              [](const Inspect& inspect) -> json {
                return {{"type", "inspect"}, {"rank", inspect.rank}};
              },
              [](const Bye&) -> json { return {{"type", "bye"}}; }},
          message));
}

Result<AgentMessage> decode_agent_message(std::string_view bytes) {
  LOCKSTEP_ASSIGN(const json map, parse_cbor(bytes));
  Reader reader(map);
  const std::string type = reader.text("type");
  if (type == "join") {
    Join join;
    join.version = reader.number("version");
    join.node = reader.number("node");
    join.session = reader.text("session");
    join.host = reader.text("host");
    join.cores = reader.number("cores");
    join.gpus = reader.number("gpus");
    join.interface = reader.text("interface");
    join.own_address = reader.text("own_address");
    join.head_address = reader.text("head_address");
    join.time = reader.real("time");
    return judged<AgentMessage, Join>(reader, join);
  }
  if (type == "beat") {
    const Beat beat = read_beat(reader);
    return judged<AgentMessage, Beat>(reader, beat);
  }
  if (type == "reports") {
    Result<Reports> reports = read_reports(reader);
    return judged<AgentMessage>(reader, std::move(reports));
  }
  if (type == "bytes") {
    LogBytes log;
    log.generation = reader.number("generation");
    log.rank = reader.number("rank", kSetupRank);
    log.offset = reader.count("offset");
    log.data = reader.text("data");
    return judged<AgentMessage, LogBytes>(reader, std::move(log));
  }
  if (type == "rest") {
    LogRest rest;
    rest.generation = reader.number("generation");
    rest.rank = reader.number("rank", kSetupRank);
    rest.size = reader.count("size");
    return judged<AgentMessage, LogRest>(reader, rest);
  }
  return unknown(type);
}

Result<HeadMessage> decode_head_message(std::string_view bytes) {
  LOCKSTEP_ASSIGN(const json map, parse_cbor(bytes));
  Reader reader(map);
  const std::string type = reader.text("type");
  if (type == "welcome") {
    Result<Welcome> welcome = read_welcome(reader);
    return judged<HeadMessage>(reader, std::move(welcome));
  }
  if (type == "refuse") {
    Refuse refuse{reader.text("reason")};
    return judged<HeadMessage, Refuse>(reader, std::move(refuse));
  }
  if (type == "beat") {
    const Beat beat = read_beat(reader);
    return judged<HeadMessage, Beat>(reader, beat);
  }
  if (type == "start") {
    Result<StartRequest> start = read_start(reader);
    return judged<HeadMessage>(reader, std::move(start));
  }
  if (type == "end") {
    EndRanks end;
    end.signal = static_cast<int>(reader.integer("signal", 1, kMostSignal));
    end.grace = reader.duration("grace");
    return judged<HeadMessage, EndRanks>(reader, end);
  }
  if (type == "inspect") {
    const Inspect inspect{reader.number("rank", kSetupRank)};
    return judged<HeadMessage, Inspect>(reader, inspect);
  }
  if (type == "bye") {
    return HeadMessage(Bye{});
  }
  return unknown(type);
}

}  // namespace lockstep::launch
