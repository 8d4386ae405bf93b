#include "lockstep/data/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
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
enum class Global { kReconstruct, kFromBuffer, kArrayType, kDtype, kEncode };
struct Dtype {
  bool is_signed = false;
  size_t width = 0;  // bytes an element; 0: no integer
  bool big = false;  // the most significant byte is first
};
struct Array {
  std::vector<int64_t> shape;
  Dtype type;
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

// "u1", "<i8": an integer of so many bytes.
Dtype dtype_of(std::string_view name) {
  Dtype type;
  if (name == "uint8") {
    name = "u1";
  } else if (name == "int64") {
    name = "i8";
  }
  if (name.size() == 3 && std::string_view("<>|=").contains(name[0])) {
    type.big = name[0] == '>';
    name.remove_prefix(1);
  }
  if (name.size() == 2 && std::string_view("iu").contains(name[0]) &&
      std::string_view("1248").contains(name[1])) {
    type.is_signed = name[0] == 'i';
    type.width = static_cast<size_t>(name[1] - '0');
  }
  return type;
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

  void push_global(std::string_view module, std::string_view member) {
    const auto in_core = [&](std::string_view part) {
      return (module.starts_with("numpy.core.") ||
              module.starts_with("numpy._core.")) &&
             module.substr(module.rfind('.') + 1) == part;
    };
    if (in_core("multiarray") && member == "_reconstruct") {
      push(Global::kReconstruct);
    } else if (in_core("numeric") && member == "_frombuffer") {
      push(Global::kFromBuffer);
    } else if (module == "_codecs" && member == "encode") {
      push(Global::kEncode);
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
      push(dtype_of(text_of(kind)));
    } else if (callee == Global::kFromBuffer && tuple.items.size() >= 4) {
      const Bytes order = as<Bytes>(tuple.items[3], "the order of an array");
      push(array_of(
          tuple.items[2],
          tuple.items[1],
          text_of(order) == "C",
          tuple.items[0]));
    } else if (callee == Global::kEncode && tuple.items.size() == 2) {
      const Bytes codec = as<Bytes>(tuple.items[1], "the name of a codec");
      if (text_of(codec) != "latin1" && text_of(codec) != "latin-1") {
        fail("it wants another codec than latin1");
      }
      push(encoded(as<Bytes>(tuple.items[0], "a text to encode")));
    } else {
      fail("it calls what is no function of an array");
    }
  }

  void build() {
    const Index state = pop();
    if (auto* type = std::get_if<Dtype>(&values_[top()])) {
      // Its version, its byte order, and what integers do not have.
      const Tuple& parts = as<Tuple>(state, "the state of a type");
      if (parts.items.size() < 2) {
        fail("the state of a type has more parts");
      }
      type->big = text_of(as<Bytes>(parts.items[1], "a byte order")) == ">";
      return;
    }
    const Tuple& tuple = as<Tuple>(state, "the state of an array");
    if (tuple.items.size() != 5) {
      fail("the state of an array has five parts");
    }
    const auto fortran = as<int64_t>(tuple.items[3], "the order of an array");
    as<Array>(top(), "an array to fill") =
        array_of(tuple.items[1], tuple.items[2], fortran == 0, tuple.items[4]);
  }

  Array array_of(Index shape, Index type, bool c_order, Index bytes) {
    Array array;
    array.type = as<Dtype>(type, "the type of an array");
    array.data = as<Bytes>(bytes, "the bytes of an array");
    if (array.type.width == 0) {
      fail("expected an array of unsigned bytes, or of integers as labels");
    }
    if (!c_order) {
      fail(
          "the array is in Fortran order; save numpy.ascontiguousarray() of "
          "it");
    }
    uint64_t count = 1;
    for (Index item : as<Tuple>(shape, "the shape of an array").items) {
      const auto side = as<int64_t>(item, "a number in a shape");
      if (side < 1 || static_cast<uint64_t>(side) > array.data.size() / count) {
        fail("the shape of the array does not match its bytes");
      }
      count *= static_cast<uint64_t>(side);
      array.shape.push_back(side);
    }
    if (count * array.type.width != array.data.size()) {
      fail("the shape of the array does not match its bytes");
    }
    array.built = true;
    return array;
  }

  // How Python 3 writes bytes in protocol 2: as a text of characters below 256.
  Bytes encoded(Bytes text) {
    // Each text once: a file that asks more often is not honest.
    encoded_bytes_ += text.size();
    if (encoded_bytes_ > file_.size()) {
      fail("it encodes more text than it has");
    }
    std::vector<uint8_t> bytes;
    bytes.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] < 0x80) {
        bytes.push_back(text[i]);
      } else if (
          (text[i] & 0xfe) == 0xc2 && i + 1 < text.size() &&
          (text[i + 1] & 0xc0) == 0x80) {
        bytes.push_back(
            static_cast<uint8_t>((text[i] << 6) | (text[i + 1] & 0x3f)));
        ++i;
      } else {
        fail("a text that is not latin1");
      }
    }
    owned_.push_back(std::move(bytes));
    return owned_.back();
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
    if (protocol < 2 || protocol > 5) {
      fail(fmt::format("protocol {}; accepted: 2 to 5", protocol));
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
      case 0x8c:
        push(take(take_number(1)));
        return false;
      case 'T':
      case 'B':
      case 'X':
        push(take(take_number(4)));
        return false;
      case 0x8d:
      case 0x8e:
      case 0x96:  // a bytearray
        push(take(take_number(8)));
        return false;
      case 0x95:  // a frame: what follows stands for itself
        take_number(8);
        return false;
      case 'c': {
        const std::string_view module = take_line();
        push_global(module, take_line());
        return false;
      }
      case 0x93: {
        const Bytes member = as<Bytes>(pop(), "the name of a global");
        const Bytes module = as<Bytes>(pop(), "the name of a module");
        push_global(text_of(module), text_of(member));
        return false;
      }
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
      case 0x94:
        put(memo_.size());
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
        const Array& array = as<Array>(value, "an array as 'data'");
        if (!array.built || array.shape.size() != 2) {
          fail("'data' is no array of two dimensions");
        }
        if (array.type.width != 1 || array.type.is_signed) {
          fail("'data' is no array of unsigned bytes");
        }
        result.rows = array.shape[0];
        result.columns = array.shape[1];
        result.data = array.data;
      } else if (word == "labels") {
        labels = true;
        result.labels = labels_of(value);
      }
    }
    if (result.rows == 0 || !labels) {
      fail("the dictionary has no 'data' or no 'labels'");
    }
    for (auto& bytes : owned_) {
      if (bytes.data() == result.data.data()) {
        result.owned = std::move(bytes);  // which moves no byte
      }
    }
    return result;
  }

  std::vector<uint8_t> labels_of(Index value) {
    std::vector<uint8_t> labels;
    const auto add = [&](int64_t label) {
      if (label < 0 || label > 255) {
        fail(fmt::format("label {} is out of range", label));
      }
      labels.push_back(static_cast<uint8_t>(label));
    };
    if (const auto* array = std::get_if<Array>(&values_[value])) {
      if (!array->built || array->shape.size() != 1) {
        fail("'labels' is no array of one dimension");
      }
      const size_t width = array->type.width;
      for (size_t at = 0; at < array->data.size(); at += width) {
        add(integer(array->data.subspan(at, width), array->type));
      }
    } else {
      for (Index item :
           as<List>(value, "a list or an array as 'labels'").items) {
        add(as<int64_t>(item, "a number as label"));
      }
    }
    return labels;
  }

  static int64_t integer(Bytes bytes, const Dtype& type) {
    const bool negative =
        type.is_signed && (bytes[type.big ? 0 : bytes.size() - 1] & 0x80) != 0;
    uint64_t value = negative ? ~uint64_t{0} : 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const size_t at = type.big ? i : bytes.size() - 1 - i;
      value = value << 8 | bytes[at];
    }
    return static_cast<int64_t>(value);
  }

  Bytes file_;
  const std::string& name_;
  size_t at_ = 0;
  std::vector<Value> values_;
  std::vector<Index> stack_;
  std::unordered_map<uint64_t, Index> memo_;
  std::deque<std::vector<uint8_t>> owned_;  // of texts that were encoded
  uint64_t encoded_bytes_ = 0;
};

}  // namespace

PickledBatch read_pickled_batch(
    std::span<const uint8_t> file,
    const std::string& name) {
  return Machine(file, name).run();
}

}  // namespace lockstep::data
