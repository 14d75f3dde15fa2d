// Json: a JSON value, and the only interface to the JSON library. Only json.cc sees that library's header
// (and safetensors.cc, which parses huge texts without a tree): it costs seconds in every file that includes
// it.
//
//   Json event = {{"event", "step"}, {"step", 7}};   // an object, whose members keep their order
//   event["tokens"] = {1, 2, 3};                     // an array
//   const std::uint64_t step = event["step"];
#pragma once

#include <array>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace holdfast::core {

class Json;
struct JsonMember;

// Tells whether get() returns this type besides numbers and truth values.
template <typename T>
inline constexpr bool is_json_text_or_list = std::is_same_v<T, std::string>;
template <typename T>
inline constexpr bool is_json_text_or_list<std::vector<T>> = true;
template <typename T, std::size_t count>
inline constexpr bool is_json_text_or_list<std::array<T, count>> = true;

template <typename T>
concept JsonNumber = std::is_arithmetic_v<T> && !std::same_as<T, bool> && !std::same_as<T, char>;
template <typename T>
concept JsonReadable = JsonNumber<T> || std::same_as<T, bool> || is_json_text_or_list<T>;
template <typename T>
concept JsonRange =
    !std::is_convertible_v<const T&, std::string_view> && !std::same_as<T, Json> && requires(const T& range) {
  range.begin();
  range.end();
};

// Iterates over the elements of an array or the values of an object.
class JsonIterator {
 public:
  using value_type = Json;
  using difference_type = std::ptrdiff_t;
  using reference = const Json&;
  using pointer = const Json*;
  using iterator_category = std::forward_iterator_tag;

  JsonIterator() = default;
  JsonIterator(const Json* element, const JsonMember* member) : element_(element), member_(member) {}

  const Json& operator*() const;
  const Json* operator->() const { return &**this; }
  JsonIterator& operator++();
  JsonIterator operator++(int);
  bool operator==(const JsonIterator&) const = default;

 private:
  const Json* element_ = nullptr;
  const JsonMember* member_ = nullptr;
};

class Json {
 public:
  using value_type = Json;

  Json() noexcept {}
  Json(std::nullptr_t) noexcept {}
  template <std::same_as<bool> T>
  Json(T value) noexcept : kind_(Kind::truth) {
    content_.truth = value;
  }
  template <JsonNumber T>
  Json(T value) noexcept {
    if constexpr (std::floating_point<T>) {
      kind_ = Kind::fraction;
      content_.fraction = static_cast<double>(value);
    } else if constexpr (std::signed_integral<T>) {
      kind_ = Kind::integer;
      content_.integer = value;
    } else {
      kind_ = Kind::count;
      content_.count = value;
    }
  }
  Json(std::string text);
  Json(std::string_view text);
  Json(const char* text);
  // Makes the value as the library does: an object if every element is a pair that begins with a text,
  // otherwise an array.
  Json(std::initializer_list<Json> elements);
  template <JsonRange T>
  Json(const T& range) {
    become_array();
    for (const auto& each : range) push_back(Json(each));
  }
  template <typename T>
  Json(const std::map<std::string, T>& members) {
    become_object();
    for (const auto& [key, value] : members) (*this)[key] = Json(value);
  }
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(Json other) noexcept;
  ~Json();

  static Json array(std::initializer_list<Json> elements = {});
  static Json object();
  static Json object(std::vector<JsonMember> members);  // whose keys all differ
  // Parses a text that this program wrote a moment ago: it is a bug if it is not JSON.
  static Json parse(std::string_view text);
  // Parses text that may be anything; returns null if it is not JSON, or nests more than 512 deep.
  static Json parse_any(std::string_view text);

  // Writes the value in one line, or with a line for each member or element. Every text in it must be UTF-8;
  // otherwise it is a bug.
  std::string dump(int indent = -1) const;
  // Writes the value like dump(), but replaces bytes that are not UTF-8.
  std::string dump_any(int indent = -1) const;

  bool is_null() const noexcept { return kind_ == Kind::null; }
  bool is_boolean() const noexcept { return kind_ == Kind::truth; }
  bool is_number_unsigned() const noexcept { return kind_ == Kind::count; }
  bool is_number_integer() const noexcept { return kind_ == Kind::count || kind_ == Kind::integer; }
  bool is_number_float() const noexcept { return kind_ == Kind::fraction; }
  bool is_number() const noexcept { return is_number_integer() || is_number_float(); }
  bool is_string() const noexcept { return kind_ == Kind::text; }
  bool is_array() const noexcept { return kind_ == Kind::array; }
  bool is_object() const noexcept { return kind_ == Kind::object; }
  const char* type_name() const noexcept;

  // Returns the text, or the value as a T; another type is a bug.
  const std::string& text() const;
  template <JsonReadable T>
  T get() const;
  template <JsonReadable T>
  operator T() const {
    return get<T>();
  }

  std::size_t size() const noexcept;
  bool empty() const noexcept { return size() == 0; }
  JsonIterator begin() const;
  JsonIterator end() const;
  const Json& front() const { return element(0); }
  const Json& back() const { return element(size() - 1); }
  void push_back(Json element);  // null becomes an array

  // Returns the element or member. A missing one is a bug in a constant value; a mutable value gets a null
  // there (and becomes an object if it was null).
  template <std::integral T>
  const Json& operator[](T index) const {
    return element(static_cast<std::size_t>(index));
  }
  const Json& operator[](const char* key) const { return at(key); }
  const Json& operator[](std::string_view key) const { return at(key); }
  Json& operator[](const char* key) { return member(key); }
  Json& operator[](std::string_view key) { return member(key); }
  const Json& at(std::string_view key) const;
  JsonIterator find(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != end(); }
  template <typename T>
  T value(std::string_view key, const T& otherwise) const;
  std::string value(std::string_view key, const char* otherwise) const;
  const std::vector<JsonMember>& items() const;
  void update(const Json& object);  // with its members

  friend bool operator==(const Json& a, const Json& b);
  template <typename T>
  requires std::is_arithmetic_v<T>
  friend bool operator==(const Json& a, T b) { return a == Json(b); }
  // Compares numbers, and texts; other types have no order.
  friend std::partial_ordering operator<=>(const Json& a, const Json& b);
  template <typename T>
  requires std::is_arithmetic_v<T>
  friend std::partial_ordering operator<=>(const Json& a, T b) { return a <=> Json(b); }
  friend std::ostream& operator<<(std::ostream& stream, const Json& json);

 private:
  friend class JsonBuilder;
  friend struct JsonWriter;
  enum class Kind : std::uint8_t { null, truth, count, integer, fraction, text, array, object };

  void become_array();
  void become_object();
  const Json& element(std::size_t index) const;
  Json& member(std::string_view key);
  bool truth() const;
  double number() const;
  std::int64_t integer() const;
  std::uint64_t count() const;

  Kind kind_ = Kind::null;
  union Content {
    bool truth;
    std::uint64_t count = 0;
    std::int64_t integer;
    double fraction;
    std::string* text;
    std::vector<Json>* array;
    std::vector<JsonMember>* object;
  } content_;
};

struct JsonMember {
  std::string key;
  Json value;
};

inline const Json& JsonIterator::operator*() const {
  return member_ != nullptr ? member_->value : *element_;
}

inline JsonIterator& JsonIterator::operator++() {
  if (member_ != nullptr) {
    ++member_;
  } else {
    ++element_;
  }
  return *this;
}

inline JsonIterator JsonIterator::operator++(int) {
  const JsonIterator before = *this;
  ++*this;
  return before;
}

template <JsonReadable T>
T Json::get() const {
  if constexpr (std::same_as<T, bool>) {
    return truth();
  } else if constexpr (std::floating_point<T>) {
    return static_cast<T>(number());
  } else if constexpr (std::unsigned_integral<T>) {
    return static_cast<T>(count());
  } else if constexpr (std::signed_integral<T>) {
    return static_cast<T>(integer());
  } else if constexpr (std::same_as<T, std::string>) {
    return text();
  } else if constexpr (requires(T list) { list.push_back({}); }) {
    T list;
    list.reserve(size());
    for (const Json& each : *this) list.push_back(each.get<typename T::value_type>());
    return list;
  } else {
    T list{};
    std::size_t next = 0;
    for (auto& each : list) each = element(next++).get<typename T::value_type>();
    return list;
  }
}

template <typename T>
T Json::value(std::string_view key, const T& otherwise) const {
  const JsonIterator found = find(key);
  if (found == end()) return otherwise;
  if constexpr (std::same_as<T, Json>) {
    return *found;
  } else {
    return found->get<T>();
  }
}

}  // namespace holdfast::core
