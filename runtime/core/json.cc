#include "runtime/core/json.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <unordered_map>

#include "runtime/core/check.h"
#include "runtime/core/json_problem.h"

namespace holdfast::core {

using Tree = nlohmann::ordered_json;

// Builds a value while the library reads its text.
class JsonBuilder final : public nlohmann::json_sax<Tree> {
 public:
  const std::string& problem() const { return problem_; }
  Json take() { return std::move(root_); }

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return begin(Json::object()); }
  bool start_array(std::size_t) override { return begin(Json::array()); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override {
    member_ = &member_of_innermost(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    problem_ = error.what();
    return false;
  }

 private:
  Json* put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_object()) {
      *member_ = std::move(value);
      return member_;
    }
    return &open_.back()->content_.array->emplace_back(std::move(value));
  }
  bool add(Json value) {
    put(std::move(value));
    return true;
  }
  bool begin(Json value) {
    if (open_.size() == deepest) {
      problem_ = "it is nested too deep";
      return false;
    }
    open_.push_back(put(std::move(value)));
    indices_.emplace_back();
    return true;
  }
  bool end() {
    open_.pop_back();
    indices_.pop_back();
    return true;
  }
  // Returns the member of this name, a null if it is new. Members of an object with many are found by an index: a
  // search through all of them for each one takes minutes for the vocabulary of a tokenizer.
  Json& member_of_innermost(const std::string& name) {
    constexpr std::size_t few = 64;
    Json& object = *open_.back();
    if (object.size() < few) return object.member(name);
    std::vector<JsonMember>& members = *object.content_.object;
    auto& index = indices_.back();
    for (std::size_t i = index.size(); i < members.size(); ++i) index.emplace(members[i].key, i);
    const auto [found, is_new] = index.emplace(name, members.size());
    if (is_new) members.push_back({name, {}});
    return members[found->second].value;
  }

  // Functions that copy, compare or write a value go down into it on the stack.
  static constexpr std::size_t deepest = 512;

  Json root_;
  std::vector<Json*> open_;  // what has begun and not ended, the innermost last
  std::vector<std::unordered_map<std::string, std::size_t>>
      indices_;             // of the members of each, where they are many
  Json* member_ = nullptr;  // of the innermost object, whose value comes next
  std::string problem_;
};

// Gives the library what it writes.
struct JsonWriter {
  static Tree tree_of(const Json& json) {
    switch (json.kind_) {
      case Json::Kind::null:
        return nullptr;
      case Json::Kind::truth:
        return json.content_.truth;
      case Json::Kind::count:
        return json.content_.count;
      case Json::Kind::integer:
        return json.content_.integer;
      case Json::Kind::fraction:
        return json.content_.fraction;
      case Json::Kind::text:
        return *json.content_.text;
      case Json::Kind::array: {
        Tree tree = Tree::array();
        auto& elements = tree.get_ref<Tree::array_t&>();
        elements.reserve(json.size());
        for (const Json& each : json) elements.push_back(tree_of(each));
        return tree;
      }
      case Json::Kind::object: {
        Tree tree = Tree::object();
        auto& members = tree.get_ref<Tree::object_t&>();
        members.reserve(json.size());
        for (const auto& [key, value] : json.items()) members.emplace_back(key, tree_of(value));
        return tree;
      }
    }
    return {};
  }
};

Json::Json(std::string text) : kind_(Kind::text) {
  content_.text = new std::string(std::move(text));
}
Json::Json(std::string_view text) : Json(std::string(text)) {}
Json::Json(const char* text) : Json(std::string(text)) {}

Json::Json(std::initializer_list<Json> elements) {
  const bool pairs = std::ranges::all_of(elements, [](const Json& each) {
    return each.is_array() && each.size() == 2 && each.front().is_string();
  });
  if (!pairs) {
    *this = array(elements);
    return;
  }
  become_object();
  for (const Json& each : elements) {
    if (!contains(each.front().text())) member(each.front().text()) = each.back();
  }
}

Json::Json(const Json& other) : kind_(other.kind_), content_(other.content_) {
  if (kind_ == Kind::text) content_.text = new std::string(*other.content_.text);
  if (kind_ == Kind::array) content_.array = new std::vector<Json>(*other.content_.array);
  if (kind_ == Kind::object) content_.object = new std::vector<JsonMember>(*other.content_.object);
}

Json::Json(Json&& other) noexcept
    : kind_(std::exchange(other.kind_, Kind::null)), content_(std::exchange(other.content_, {})) {}

Json& Json::operator=(Json other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(content_, other.content_);
  return *this;
}

// Destroys without recursion: a value that was built step by step may nest deeper than the stack allows.
Json::~Json() {
  std::vector<Json> rest;
  const auto open = [&rest](Json& json) {
    if (json.kind_ == Kind::text) delete json.content_.text;
    if (json.kind_ == Kind::array) {
      const std::unique_ptr<std::vector<Json>> elements(json.content_.array);
      for (Json& each : *elements)
        if (each.is_array() || each.is_object()) rest.push_back(std::move(each));
    }
    if (json.kind_ == Kind::object) {
      const std::unique_ptr<std::vector<JsonMember>> members(json.content_.object);
      for (JsonMember& each : *members)
        if (each.value.is_array() || each.value.is_object()) rest.push_back(std::move(each.value));
    }
    json.kind_ = Kind::null;
  };
  open(*this);
  while (!rest.empty()) {
    Json next = std::move(rest.back());
    rest.pop_back();
    open(next);
  }
}

Json Json::array(std::initializer_list<Json> elements) {
  Json json;
  json.become_array();
  json.content_.array->assign(elements);
  return json;
}

Json Json::object() {
  Json json;
  json.become_object();
  return json;
}

Json Json::object(std::vector<JsonMember> members) {
  Json json = object();
  *json.content_.object = std::move(members);
  return json;
}

Json Json::parse(std::string_view text) {
  JsonBuilder builder;
  const bool is_json = Tree::sax_parse(text, &builder);
  HF_CHECK(is_json, "{}", builder.problem());
  return builder.take();
}

Json Json::parse_any(std::string_view text) {
  JsonBuilder builder;
  return Tree::sax_parse(text, &builder) ? builder.take() : Json();
}

// Leaves out the number in brackets with which a sentence of nlohmann begins.
std::string json_problem(std::string_view text) {
  JsonBuilder builder;
  if (Tree::sax_parse(text, &builder)) return "";
  const std::string& problem = builder.problem();
  const std::size_t bracket = problem.find("] ");
  return bracket == std::string::npos ? problem : problem.substr(bracket + 2);
}

std::string Json::dump(int indent) const {
  try {
    return JsonWriter::tree_of(*this).dump(indent);
  } catch (const Tree::exception& error) {
    HF_CHECK(false, "{}", error.what());
  }
  return {};
}

std::string Json::dump_any(int indent) const {
  return JsonWriter::tree_of(*this).dump(indent, ' ', false, Tree::error_handler_t::replace);
}

const char* Json::type_name() const noexcept {
  switch (kind_) {
    case Kind::null:
      return "null";
    case Kind::truth:
      return "boolean";
    case Kind::text:
      return "string";
    case Kind::array:
      return "array";
    case Kind::object:
      return "object";
    default:
      return "number";
  }
}

const std::string& Json::text() const {
  HF_CHECK(is_string(), "{} is no text", type_name());
  return *content_.text;
}

std::size_t Json::size() const noexcept {
  if (is_null()) return 0;
  if (is_array()) return content_.array->size();
  return is_object() ? content_.object->size() : 1;
}

JsonIterator Json::begin() const {
  if (is_array()) return {content_.array->data(), nullptr};
  return is_object() ? JsonIterator(nullptr, content_.object->data()) : JsonIterator();
}

JsonIterator Json::end() const {
  if (is_array()) return {content_.array->data() + size(), nullptr};
  return is_object() ? JsonIterator(nullptr, content_.object->data() + size()) : JsonIterator();
}

void Json::push_back(Json element) {
  if (is_null()) become_array();
  HF_CHECK(is_array(), "{} is no array", type_name());
  content_.array->push_back(std::move(element));
}

const Json& Json::at(std::string_view key) const {
  HF_CHECK(is_object(), "{} is no object with {}", type_name(), key);
  const JsonIterator found = find(key);
  HF_CHECK(found != end(), "no {}", key);
  return *found;
}

JsonIterator Json::find(std::string_view key) const {
  if (!is_object()) return end();
  const auto found = std::ranges::find(*content_.object, key, &JsonMember::key);
  return {nullptr, content_.object->data() + (found - content_.object->begin())};
}

std::string Json::value(std::string_view key, const char* otherwise) const {
  const JsonIterator found = find(key);
  return found == end() ? std::string(otherwise) : found->text();
}

const std::vector<JsonMember>& Json::items() const {
  HF_CHECK(is_object(), "{} is no object", type_name());
  return *content_.object;
}

void Json::update(const Json& object) {
  for (const auto& [key, value] : object.items()) member(key) = value;
}

bool operator==(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return (a <=> b) == 0;
  if (a.kind_ != b.kind_) return false;
  switch (a.kind_) {
    case Json::Kind::truth:
      return a.content_.truth == b.content_.truth;
    case Json::Kind::text:
      return *a.content_.text == *b.content_.text;
    case Json::Kind::array:
      return *a.content_.array == *b.content_.array;
    case Json::Kind::object:
      return a.size() == b.size() && std::ranges::all_of(a.items(), [&b](const JsonMember& member) {
               const JsonIterator found = b.find(member.key);
               return found != b.end() && *found == member.value;
             });
    default:
      return true;
  }
}

std::partial_ordering operator<=>(const Json& a, const Json& b) {
  if (a.is_string() && b.is_string()) return a.text() <=> b.text();
  if (!a.is_number() || !b.is_number()) return std::partial_ordering::unordered;
  if (a.is_number_float() || b.is_number_float()) return a.number() <=> b.number();
  if (a.is_number_unsigned() && b.is_number_unsigned()) return a.count() <=> b.count();
  // One of two that has a sign may be below all that have none.
  if (a.is_number_unsigned()) {
    if (b.integer() < 0) return std::partial_ordering::greater;
    return a.count() <=> static_cast<std::uint64_t>(b.integer());
  }
  if (b.is_number_unsigned()) return 0 <=> (b <=> a);
  return a.integer() <=> b.integer();
}

std::ostream& operator<<(std::ostream& stream, const Json& json) {
  return stream << json.dump_any();
}

void Json::become_array() {
  content_.array = new std::vector<Json>();
  kind_ = Kind::array;
}

void Json::become_object() {
  content_.object = new std::vector<JsonMember>();
  kind_ = Kind::object;
}

const Json& Json::element(std::size_t index) const {
  HF_CHECK(is_array() && index < size(), "no element {} of {}", index, type_name());
  return (*content_.array)[index];
}

Json& Json::member(std::string_view key) {
  if (is_null()) become_object();
  HF_CHECK(is_object(), "{} is no object with {}", type_name(), key);
  const auto found = std::ranges::find(*content_.object, key, &JsonMember::key);
  if (found != content_.object->end()) return found->value;
  content_.object->push_back({.key = std::string(key), .value = Json()});
  return content_.object->back().value;
}

bool Json::truth() const {
  HF_CHECK(is_boolean(), "{} is no truth value", type_name());
  return content_.truth;
}

double Json::number() const {
  HF_CHECK(is_number(), "{} is no number", type_name());
  if (is_number_float()) return content_.fraction;
  return is_number_unsigned() ? static_cast<double>(content_.count) : static_cast<double>(content_.integer);
}

std::int64_t Json::integer() const {
  HF_CHECK(is_number(), "{} is no number", type_name());
  return is_number_float() ? static_cast<std::int64_t>(content_.fraction) : content_.integer;
}

std::uint64_t Json::count() const {
  HF_CHECK(is_number(), "{} is no number", type_name());
  return is_number_float() ? static_cast<std::uint64_t>(content_.fraction) : content_.count;
}

}  // namespace holdfast::core
