#include "lockstep/data/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "lockstep/data/dataset.h"

namespace lockstep::data {
namespace {

constexpr size_t kMaxValues = 2'000'000;  // CIFAR-10's batches make 50,000

// Values live in one table and name each other by index: no recursion, not
// even to destroy them, however deep a hostile file nests.
using Index = uint32_t;
using Bytes = std::span<const uint8_t>;
struct None {};
struct Mark {};
struct Tuple {
  std::vector<Index> items;
};
struct List {
  std::vector<Index> items;
};
struct Dict {
  std::vector<std::pair<Index, Index>> items;
};
enum class Global { kReconstruct, kArrayType, kDtype };
struct Dtype {
  bool bytes = false;  // u1: one unsigned byte an element
};
struct Array {
  std::vector<int64_t> shape;
  Bytes data;
  bool built = false;
};
using Value = std::variant<
    None,
    Mark,
    int64_t,
    Bytes,
    Tuple,
    List,
    Dict,
    Global,
    Dtype,
    Array>;

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Machine {
 public:
  Machine(Bytes file, const std::string& name) : file_(file), name_(name) {}

  PickledBatch run() {
    while (!step()) {}
    return batch();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(
        fmt::format("{}: bad pickle at byte {}: {}", name_, at_, what));
  }

  Bytes take(uint64_t count) {
    if (count > file_.size() - at_) {
      fail("truncated");
    }
    Bytes taken = file_.subspan(at_, static_cast<size_t>(count));
    at_ += static_cast<size_t>(count);
    return taken;
  }

  uint64_t take_number(size_t count) {
    uint64_t value = 0;
    Bytes bytes = take(count);
    for (size_t i = 0; i < count; ++i) {
      value |= uint64_t{bytes[i]} << (8 * i);
    }
    return value;
  }

  std::string_view take_line() {
    const auto from = file_.begin() + static_cast<std::ptrdiff_t>(at_);
    const auto end = std::find(from, file_.end(), '\n');
    if (end == file_.end()) {
      fail("truncated");
    }
    Bytes line = take(static_cast<uint64_t>(end - from));
    take(1);
    return text_of(line);
  }

  void push(Value value) {
    if (values_.size() >= kMaxValues) {
      fail("too many objects for a batch of images");
    }
    values_.push_back(std::move(value));
    stack_.push_back(static_cast<Index>(values_.size() - 1));
  }

  Index pop() {
    if (stack_.empty()) {
      fail("it takes from an empty stack");
    }
    const Index top = stack_.back();
    stack_.pop_back();
    return top;
  }

  Index top() const {
    if (stack_.empty()) {
      fail("it looks at an empty stack");
    }
    return stack_.back();
  }

  std::vector<Index> pop_to_mark() {
    for (size_t i = stack_.size(); i > 0; --i) {
      if (std::holds_alternative<Mark>(values_[stack_[i - 1]])) {
        std::vector<Index> items(
            stack_.begin() + static_cast<std::ptrdiff_t>(i), stack_.end());
        stack_.resize(i - 1);
        return items;
      }
    }
    fail("no mark on the stack");
  }

  template <class T>
  T& as(Index index, const char* what) {
    if (T* value = std::get_if<T>(&values_[index])) {
      return *value;
    }
    fail(fmt::format("expected {}", what));
  }

  void push_tuple(size_t count) {
    Tuple tuple;
    tuple.items.resize(count);
    for (size_t i = count; i > 0; --i) {
      tuple.items[i - 1] = pop();
    }
    push(std::move(tuple));
  }

  void put(uint64_t slot) { memo_[slot] = top(); }

  void get(uint64_t slot) {
    auto found = memo_.find(slot);
    if (found == memo_.end()) {
      fail(fmt::format("memo {} was never stored", slot));
    }
    stack_.push_back(found->second);
    // The stack alone must not outgrow the table.
    if (stack_.size() > kMaxValues) {
      fail("too many objects for a batch of images");
    }
  }

  void push_global() {
    const std::string_view module = take_line();
    const std::string_view member = take_line();
    const bool numpy_core =
        module == "numpy.core.multiarray" || module == "numpy._core.multiarray";
    if (numpy_core && member == "_reconstruct") {
      push(Global::kReconstruct);
    } else if (module == "numpy" && member == "ndarray") {
      push(Global::kArrayType);
    } else if (module == "numpy" && member == "dtype") {
      push(Global::kDtype);
    } else {
      fail(
          fmt::format(
              "it wants {}.{}; only NumPy arrays are accepted",
              module.substr(0, 80),
              member.substr(0, 80)));
    }
  }

  void reduce() {
    const Index arguments = pop();
    const Global callee = as<Global>(pop(), "a known name to call");
    const Tuple& tuple = as<Tuple>(arguments, "a tuple of arguments");
    if (callee == Global::kReconstruct) {
      push(Array{});
    } else if (callee == Global::kDtype && !tuple.items.empty()) {
      const Bytes kind = as<Bytes>(tuple.items[0], "the name of a type");
      const std::string_view text = text_of(kind);
      push(Dtype{text == "u1" || text == "|u1" || text == "uint8"});
    } else {
      fail("it calls what is no function of an array");
    }
  }

  void build() {
    const Index state = pop();
    if (std::holds_alternative<Dtype>(values_[top()])) {
      return;  // byte order and alignment: one byte has neither
    }
    const Tuple& tuple = as<Tuple>(state, "the state of an array");
    if (tuple.items.size() != 5) {
      fail("the state of an array has five parts");
    }
    const Tuple& shape = as<Tuple>(tuple.items[1], "the shape of an array");
    const Dtype type = as<Dtype>(tuple.items[2], "the type of an array");
    const auto fortran = as<int64_t>(tuple.items[3], "the order of an array");
    const Bytes data = as<Bytes>(tuple.items[4], "the bytes of an array");
    if (!type.bytes || fortran != 0) {
      fail("expected unsigned bytes in C order");
    }
    Array array;
    uint64_t count = 1;
    for (Index item : shape.items) {
      const auto side = as<int64_t>(item, "a number in a shape");
      if (side < 1 || static_cast<uint64_t>(side) > data.size() / count) {
        fail("the shape of the array does not match its bytes");
      }
      count *= static_cast<uint64_t>(side);
      array.shape.push_back(side);
    }
    if (count != data.size()) {
      fail("the shape of the array does not match its bytes");
    }
    array.data = data;
    array.built = true;
    as<Array>(top(), "an array to fill") = std::move(array);
  }

  void append(std::span<const Index> items) {
    List& list = as<List>(top(), "a list");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }

  void set_items(std::span<const Index> items) {
    if (items.size() % 2 != 0) {
      fail("a key without a value");
    }
    Dict& dict = as<Dict>(top(), "a dictionary");
    for (size_t i = 0; i < items.size(); i += 2) {
      dict.items.emplace_back(items[i], items[i + 1]);
    }
  }

  void expect_protocol() {
    const uint64_t protocol = take_number(1);
    if (protocol > 3) {
      fail(fmt::format("protocol {}; accepted: 2, 3", protocol));
    }
  }

  // True at the end. One opcode of pickletools a case.
  bool step() {
    const uint8_t opcode = take(1)[0];
    switch (opcode) {
      case 0x80:
        expect_protocol();
        return false;
      case '.':
        return true;
      case '(':
        push(Mark{});
        return false;
      case 'N':
        push(None{});
        return false;
      case 0x88:
        push(int64_t{1});
        return false;
      case 0x89:
        push(int64_t{0});
        return false;
      case 'K':
        push(static_cast<int64_t>(take_number(1)));
        return false;
      case 'M':
        push(static_cast<int64_t>(take_number(2)));
        return false;
      case 'J':
        push(int64_t{static_cast<int32_t>(take_number(4))});
        return false;
      case 'U':  // strings of Python 2, bytes and text of Python 3
      case 'C':
        push(take(take_number(1)));
        return false;
      case 'T':
      case 'B':
      case 'X':
        push(take(take_number(4)));
        return false;
      case 'c':
        push_global();
        return false;
      case ')':
        push(Tuple{});
        return false;
      case 't':
        push(Tuple{pop_to_mark()});
        return false;
      case 0x85:
      case 0x86:
      case 0x87:
        push_tuple(opcode - 0x84u);
        return false;
      case ']':
        push(List{});
        return false;
      case 'a': {
        const Index item = pop();
        append({&item, 1});
        return false;
      }
      case 'e':
        append(pop_to_mark());
        return false;
      case '}':
        push(Dict{});
        return false;
      case 's': {
        const Index value = pop();
        const std::array<Index, 2> pair = {pop(), value};
        set_items(pair);
        return false;
      }
      case 'u':
        set_items(pop_to_mark());
        return false;
      case 'q':
        put(take_number(1));
        return false;
      case 'r':
        put(take_number(4));
        return false;
      case 'h':
        get(take_number(1));
        return false;
      case 'j':
        get(take_number(4));
        return false;
      case 'R':
        reduce();
        return false;
      case 'b':
        build();
        return false;
      default:
        fail(fmt::format("unexpected opcode {:#04x}", opcode));
    }
  }

  PickledBatch batch() {
    PickledBatch result;
    bool labels = false;
    const Dict dict = as<Dict>(pop(), "a dictionary at the top");
    for (const auto& [key, value] : dict.items) {
      const std::string_view word = text_of(as<Bytes>(key, "a word as key"));
      if (word == "data") {
        const Array array = as<Array>(value, "an array as 'data'");
        if (!array.built || array.shape.size() != 2) {
          fail("'data' is no array of two dimensions");
        }
        result.rows = array.shape[0];
        result.columns = array.shape[1];
        result.data = array.data;
      } else if (word == "labels") {
        labels = true;
        result.labels.clear();
        for (Index item : as<List>(value, "a list as 'labels'").items) {
          const auto label = as<int64_t>(item, "a number as label");
          if (label < 0 || label > 255) {
            fail(fmt::format("label {} is out of range", label));
          }
          result.labels.push_back(static_cast<uint8_t>(label));
        }
      }
    }
    if (result.rows == 0 || !labels) {
      fail("the dictionary has no 'data' or no 'labels'");
    }
    return result;
  }

  Bytes file_;
  const std::string& name_;
  size_t at_ = 0;
  std::vector<Value> values_;
  std::vector<Index> stack_;
  std::unordered_map<uint64_t, Index> memo_;
};

}  // namespace

PickledBatch read_pickled_batch(
    std::span<const uint8_t> file,
    const std::string& name) {
  return Machine(file, name).run();
}

}  // namespace lockstep::data
