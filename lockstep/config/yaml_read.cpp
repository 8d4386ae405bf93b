// From YAML text to a Node: yaml-cpp's scanner and parser, with a handler of
// our own for its events, because its node tree hides duplicate keys and
// leaves the expansion of aliases without a bound.

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>
#include <unordered_map>

#include "lockstep/config/node.h"

namespace lockstep::config {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxNodes = 20'000;
// YAML takes a key of 1024 characters; escaped, ours must still fit.
constexpr size_t kMaxKey = 200;

Error bad_at(const Place& place, const std::string& what) {
  return Error(
      ErrorCode::kInvalidInput, fmt::format("{}: {}", place.to_string(), what));
}

// Thrown inside this file only: yaml-cpp's callbacks have no other way out.
struct Refused {
  Place place;
  std::string what;
};

bool is_null_word(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" ||
         text == "NULL";
}

// How many bytes the UTF-8 character at the front has; 0: not UTF-8.
size_t utf8_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80                   ? 1
                        : lead >= 0xc2 && lead < 0xe0 ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  if (length == 0 || length > text.size()) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) {
      return 0;
    }
  }
  return length;
}

Result<void> check_text(std::string_view text, const std::string& source) {
  if (text.size() > kMaxBytes) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("{}: larger than {} MiB", source, kMaxBytes >> 20));
  }
  int line = 1;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control = byte == 0x7f || (byte < 0x20 && byte != '\t' &&
                                          byte != '\n' && byte != '\r');
    const size_t length = control ? 0 : utf8_length(text.substr(i));
    if (length == 0) {
      return bad_at(
          {source, line},
          fmt::format("byte 0x{:02x} is not text; this is not YAML", byte));
    }
    line += byte == '\n';
    i += length;
  }
  return {};
}

// The escapes \N and \_ (a line's end and a space that does not break) come
// from yaml-cpp as one byte of Latin-1, where the rest is UTF-8.
std::string with_whole_escapes(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(std::string_view(text).substr(i));
    if (length == 0) {
      result += '\xc2';
    }
    const size_t taken = std::max<size_t>(length, 1);
    result.append(text, i, taken);
    i += taken;
  }
  return result;
}

size_t depth_of(const Node& node) {
  size_t deepest = 0;
  for (const auto& item : node.items()) {
    deepest = std::max(deepest, depth_of(item));
  }
  for (const auto& [key, value] : node.entries()) {
    deepest = std::max(deepest, depth_of(value));
  }
  return deepest + 1;
}

size_t count_of(const Node& node) {
  size_t count = 1;
  for (const auto& item : node.items()) {
    count += count_of(item);
  }
  for (const auto& [key, value] : node.entries()) {
    count += count_of(value);
  }
  return count;
}

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string source, bool lines)
      : source_(std::move(source)), lines_(lines) {}

  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(Node::null(place(mark)), anchor);
  }

  void OnScalar(
      const YAML::Mark& mark,
      const std::string& tag,
      YAML::anchor_t anchor,
      const std::string& value) override {
    // "?" is a plain scalar; "!" is a quoted or block one.
    const bool quoted = tag != "?" && !tag.empty();
    if (!quoted && is_null_word(value) && !awaits_key()) {
      add(Node::null(place(mark)), anchor);
    } else {
      add(Node::scalar(with_whole_escapes(value), place(mark), quoted), anchor);
    }
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) {
      throw Refused{place(mark), "an alias stands inside what it names"};
    }
    const Known& known = found->second;
    if (frames_.size() + known.depth > kMaxDepth) {
      throw Refused{place(mark), too_deep()};
    }
    spend(known.count, mark);
    Node copy = known.node;
    add(std::move(copy), 0, false);
  }

  void OnSequenceStart(
      const YAML::Mark& mark,
      const std::string&,
      YAML::anchor_t anchor,
      YAML::EmitterStyle::value) override {
    open(Node::list(place(mark)), mark, anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(
      const YAML::Mark& mark,
      const std::string&,
      YAML::anchor_t anchor,
      YAML::EmitterStyle::value) override {
    open(Node::map(place(mark)), mark, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Node node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;
    Node key;
    std::vector<Node> merged;  // what `<<` named
  };
  struct Known {
    Node node;
    size_t depth;
    size_t count;
  };

  Place place(const YAML::Mark& mark) const {
    return {source_, lines_ && mark.line >= 0 ? mark.line + 1 : 0};
  }
  static std::string too_deep() {
    return fmt::format("nested deeper than {} levels", kMaxDepth);
  }
  bool awaits_key() const {
    return !frames_.empty() && frames_.back().node.kind() == Node::Kind::kMap &&
           !frames_.back().has_key;
  }

  void spend(size_t nodes, const YAML::Mark& mark) {
    num_nodes_ += nodes;
    if (num_nodes_ > kMaxNodes) {
      throw Refused{
          place(mark),
          fmt::format(
              "more than {} values, aliases counted each time", kMaxNodes)};
    }
  }

  void open(Node node, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (frames_.size() >= kMaxDepth) {
      throw Refused{place(mark), too_deep()};
    }
    spend(1, mark);
    Frame frame;
    frame.node = std::move(node);
    frame.anchor = anchor;
    frames_.push_back(std::move(frame));
  }

  void close() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    if (!frame.merged.empty()) {
      Node below = Node::map(frame.node.place());
      // The first of a list of merged maps wins, as the merge key says.
      for (auto it = frame.merged.rbegin(); it != frame.merged.rend(); ++it) {
        below = merge_flat(std::move(below), *it);
      }
      frame.node = merge_flat(std::move(below), frame.node);
    }
    add(std::move(frame.node), frame.anchor, false);
  }

  static Node merge_flat(Node base, const Node& over) {
    for (const auto& [key, value] : over.entries()) {
      base.set(key, value);
    }
    return base;
  }

  void add(Node node, YAML::anchor_t anchor, bool counts = true) {
    if (counts && ++num_nodes_ > kMaxNodes) {
      throw Refused{
          node.place(), fmt::format("more than {} values", kMaxNodes)};
    }
    if (anchor != 0) {
      // A copy is kept for each anchor, so anchors cost what aliases cost.
      const size_t count = count_of(node);
      num_nodes_ += count;
      if (num_nodes_ > kMaxNodes) {
        throw Refused{
            node.place(), fmt::format("more than {} values", kMaxNodes)};
      }
      anchors_.insert_or_assign(anchor, Known{node, depth_of(node), count});
    }
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& top = frames_.back();
    if (top.node.kind() == Node::Kind::kList) {
      top.node.append(std::move(node));
    } else if (!top.has_key) {
      if (node.kind() != Node::Kind::kScalar) {
        throw Refused{node.place(), "a key must be plain text"};
      }
      top.key = std::move(node);
      top.has_key = true;
    } else {
      top.has_key = false;
      set(top, std::move(node));
    }
  }

  void set(Frame& top, Node value) {
    const std::string& key = top.key.text();
    const Place& place = top.key.place();
    if (key == "<<" && !top.key.quoted()) {
      take_merge(top, value);
      return;
    }
    if (key.empty()) {
      throw Refused{place, "a key is empty"};
    }
    if (key.size() > kMaxKey) {
      throw Refused{place, fmt::format("a key is over {} bytes", kMaxKey)};
    }
    // What is wrong with a value is looked for at its key: a section begins
    // lines below, an alias was written elsewhere.
    value.set_place(place);
    if (top.key.quoted() || key.find('.') == std::string::npos) {
      put(top.node, key, key, std::move(value), place);
      return;
    }
    std::vector<std::string> parts;
    size_t start = 0;
    while (start <= key.size()) {
      const size_t dot = std::min(key.find('.', start), key.size());
      parts.push_back(key.substr(start, dot - start));
      if (parts.back().empty()) {
        throw Refused{place, fmt::format("key '{}' has an empty part", key)};
      }
      start = dot + 1;
    }
    // The value was read before its key was known to be several levels.
    if (frames_.size() + parts.size() - 1 + depth_of(value) > kMaxDepth) {
      throw Refused{place, too_deep()};
    }
    Node nested = std::move(value);
    for (size_t i = parts.size(); i-- > 1;) {
      Node outer = Node::map(place);
      outer.set(parts[i], std::move(nested));
      nested = std::move(outer);
    }
    put(top.node, parts[0], parts[0], std::move(nested), place);
  }

  // `data: mnist` beside `data.batch_size: 8`: a choice has its own key there.
  static std::string
  choice_advice(const std::string& key, const Node& one, const Node& other) {
    const Node& choice = one.kind() == Node::Kind::kScalar ? one : other;
    const Node& keys = &choice == &one ? other : one;
    return choice.kind() == Node::Kind::kScalar &&
                   keys.kind() == Node::Kind::kMap
               ? fmt::format(
                     "; a choice beside its keys is '{}.name: {}'",
                     key,
                     choice.text())
               : "";
  }

  // Sets `key`, or merges two maps that the dotted form wrote in parts;
  // anything set twice is refused.
  static void put(
      Node& map,
      const std::string& key,
      const std::string& shown,
      Node value,
      const Place& place) {
    Node* old = map.find(key);
    if (old == nullptr) {
      map.set(key, std::move(value));
      return;
    }
    if (old->kind() != Node::Kind::kMap || value.kind() != Node::Kind::kMap) {
      throw Refused{
          place,
          fmt::format(
              "key '{}' is given twice, first at {}{}",
              shown,
              old->place().to_string(),
              choice_advice(shown, *old, value))};
    }
    for (const auto& [inner, node] : value.entries()) {
      put(*old, inner, shown + "." + inner, node, node.place());
    }
  }

  static void take_merge(Frame& top, const Node& value) {
    if (value.kind() == Node::Kind::kMap) {
      top.merged.push_back(value);
      return;
    }
    bool maps = value.kind() == Node::Kind::kList;
    for (const auto& item : value.items()) {
      maps = maps && item.kind() == Node::Kind::kMap;
      top.merged.push_back(item);
    }
    if (!maps) {
      throw Refused{
          top.key.place(), "'<<' takes a map or a list of maps (<<: *name)"};
    }
  }

  std::string source_;
  bool lines_;
  Node root_;
  std::vector<Frame> frames_;
  std::unordered_map<YAML::anchor_t, Known> anchors_;
  size_t num_nodes_ = 0;
};

// Its advice is for programmers; these two are the common ones.
std::string plain_words(const YAML::Exception& failure) {
  const std::string& text = failure.msg;
  if (text.find("end of map not found") != std::string::npos ||
      text.find("illegal map value") != std::string::npos) {
    return text + " (check the indentation and the ':' here)";
  }
  return text.empty() ? "not YAML" : text;
}

Result<Node>
parse(std::string_view text, const std::string& source, bool lines) {
  LOCKSTEP_TRY(check_text(text, source));
  try {
    // yaml-cpp lets a quote that is still open after the last line break pass;
    // with a comment at the end it does not.
    std::istringstream stream{std::string(text) + "\n#"};
    YAML::Parser parser(stream);
    TreeBuilder builder(source, lines);
    if (!parser.HandleNextDocument(builder)) {
      return Node::null({source, 0});
    }
    Node root = builder.take();
    TreeBuilder second(source, lines);
    if (parser.HandleNextDocument(second)) {
      return bad_at(
          second.take().place(), "a second document; a file holds one");
    }
    return root;
  } catch (const Refused& refused) {
    return bad_at(refused.place, refused.what);
  } catch (const YAML::Exception& failure) {
    const int line = failure.mark.is_null() ? 0 : failure.mark.line + 1;
    return bad_at({source, lines ? line : 0}, plain_words(failure));
  } catch (const std::exception& failure) {
    return bad_at({source, 0}, fmt::format("not YAML ({})", failure.what()));
  }
}

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

}  // namespace

Result<Node> parse_yaml(std::string_view text, const std::string& source) {
  return parse(text, source, true);
}

Result<Node> load_yaml(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return os_error(fmt::format("cannot open {}", path), errno);
  }
  // A folder opens, but its first read fails; a device could be endless.
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) {
    return os_error(fmt::format("cannot read {}", path), errno);
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return parse_yaml(text, path);
}

Result<Node> parse_override(std::string_view argument) {
  const Place place{fmt::format("command line '{}'", argument), 0};
  const size_t equals = argument.find('=');
  if (equals == std::string_view::npos) {
    return bad_at(place, "this is not key=value (such as optim.lr=0.001)");
  }
  const std::string_view key = argument.substr(0, equals);
  const std::string_view value = argument.substr(equals + 1);
  for (const char c : key) {
    if (!is_key_character(c)) {
      return bad_at(
          place,
          fmt::format(
              "'{}' is not a key: letters, digits, '_', '-' and dots", key));
    }
  }
  if (key.empty()) {
    return bad_at(place, "there is no key before '='");
  }
  if (key.size() > kMaxKey) {
    return bad_at(place, fmt::format("the key is over {} bytes", kMaxKey));
  }
  LOCKSTEP_TRY(check_text(value, place.source));
  Node tree = Node::map(place);
  Node leaf;
  if (value == "null" || value == "~") {
    leaf = Node::null(place);
  } else if (!value.empty() && std::string_view("[{\"'").contains(value[0])) {
    LOCKSTEP_ASSIGN(leaf, parse(value, place.source, false));
  } else {
    leaf = Node::scalar(std::string(value), place, value.empty());
  }
  size_t parts = 1;
  for (const char c : key) {
    parts += c == '.';
  }
  if (parts - 1 + depth_of(leaf) > kMaxDepth) {
    return bad_at(place, fmt::format("deeper than {} levels", kMaxDepth));
  }
  LOCKSTEP_TRY(tree.set_path(key, std::move(leaf)));
  return tree;
}

}  // namespace lockstep::config
