// CrashLog: what a crash may leave of recorded operations (tests/support/recording_env.h), as files in
// memory. Pure: the same log, cut and sample make the same files.
//
//   const CrashLog log(env.log());
//   const CrashLog::Point point = log.crash_before(cut);     // of the operation with this number
//   MemoryEnv files = point.state(sample);
//
// The disk and its file system are as unkind as POSIX lets them be:
//   - what was written or truncated since the last sync of a file may be there, be lost, or be there in part,
//   by
//     sectors of 512 or 4096 bytes in any combination; the file may have grown without its bytes, and what is
//     lost inside of it is old content, zeros or garbage;
//   - names that were made, changed or removed since the last sync of their directory may be there or not,
//   each
//     of them alone; in half of the samples in the order of a journal: if one is there, all before it are. A
//     rename happens as a whole, as it does on every file system with a journal.
// Method: ALICE (Pillai et al., OSDI 2014), by sampling instead of a model of each file system.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/random.h"
#include "tests/support/memory_env.h"
#include "tests/support/recording_env.h"

namespace holdfast::test {

class CrashLog {
 public:
  class Point;

  explicit CrashLog(const std::vector<RecordedOperation>& log) {  // which must outlive it
    nodes_.push_back({.directory = true});                        // the root
    for (std::size_t at = 0; at < log.size(); ++at) take(log[at], at);
  }

  Point crash_before(std::size_t cut) const;

 private:
  using Kind = RecordedOperation::Kind;
  using Directory = std::map<std::string, std::size_t>;  // name -> number of the node
  static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

  struct Node {
    bool directory = false;
    Directory names = {};    // as they are when nothing crashes
    std::uint64_t size = 0;  // of a file, the same
  };
  // Takes `node` from the source, puts it at the target; one of the names may be empty.
  struct NameChange {
    std::size_t at = 0, durable_at = never;  // operations of the log
    std::size_t node = 0;
    std::size_t source = 0, target = 0;  // directories
    std::string source_name = {}, target_name = {};
  };
  // Bytes at an offset, or a new size.
  struct ContentChange {
    std::size_t at = 0, durable_at = never;
    std::size_t node = 0;
    const std::vector<std::byte>* bytes = nullptr;  // null: a size
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    bool cuts = false;  // the size may be less than before
  };

  // What becomes of a change of content.
  struct Kept {
    bool all = true;
    bool size = true;  // the file has at least grown
    std::uint64_t sector_bytes = 512;
    double share = 0.0;  // of the sectors that are there
    enum class Lost {
      old,
      garbage
    } lost = Lost::old;  // what is in the others; old = zeros in what has grown
    std::uint64_t seed = 0;
  };

  // What becomes of the changes that are not durable in one sample. Names come before contents.
  class Fate {
   public:
    Fate(std::size_t open, std::size_t cut, std::uint64_t sample)
        : open_(open), sample_(sample), lot_(mix64(cut, sample), 11) {
      in_order_ = lot_.bits(0) % 2 == 0;
      share_ = 0.1 + 0.8 * lot_.uniform(1);
      order_end_ = lot_.bits(2) % (open + 1);
    }
    bool keeps_name(std::size_t change) const {
      if (is_listed()) return keeps_listed(change);
      return in_order_ ? change < order_end_ : lot_.uniform(100 + change) < share_;
    }
    Kept kept(std::size_t change, std::uint64_t at) const {
      const bool all = is_listed() ? keeps_listed(change) : lot_.uniform(100 + change) < 0.3;
      if (all || is_listed()) return {.all = all, .size = all};
      const std::uint64_t bits = lot_.bits(100'000 + change);
      return {.all = false,
              .size = bits % 4 != 0,
              .sector_bytes = bits % 8 < 4 ? std::uint64_t{512} : 4096,
              .share = bits % 5 == 0 ? 0.0 : share_,
              .lost = bits % 3 == 0 ? Kept::Lost::garbage : Kept::Lost::old,
              .seed = mix64(bits, at)};
    }

   private:
    bool is_listed() const { return sample_ < 2 + 2 * open_; }
    bool keeps_listed(std::size_t change) const {
      if (sample_ < 2) return sample_ == 1;
      if (sample_ < 2 + open_) return change != sample_ - 2;
      return change == sample_ - 2 - open_;
    }

    std::size_t open_;
    std::uint64_t sample_;
    RandomStream lot_;
    bool in_order_ = false;
    double share_ = 0.5;
    std::uint64_t order_end_ = 0;
  };

  static void apply(const ContentChange& change, const Kept& kept, std::vector<std::byte>& content) {
    if (change.bytes == nullptr) {
      if (kept.all && (change.cuts || content.size() < change.size)) content.resize(change.size);
      return;
    }
    const std::vector<std::byte>& bytes = *change.bytes;
    const std::uint64_t end = change.offset + bytes.size();
    if (kept.size && content.size() < end) content.resize(end);
    const RandomStream lot(kept.seed, 13);
    constexpr std::uint64_t garbage_bytes = sizeof(std::uint64_t);  // of one number
    for (std::uint64_t begin = change.offset; begin < end;) {
      const std::uint64_t sector = begin / kept.sector_bytes;
      const std::uint64_t stop = std::min({end, (sector + 1) * kept.sector_bytes, content.size()});
      if (begin >= stop) return;  // beyond the end of a file that has not grown
      const bool is_there = kept.all || lot.uniform(sector) < kept.share;
      if (is_there)
        std::ranges::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin - change.offset),
                            static_cast<std::ptrdiff_t>(stop - begin),
                            content.begin() + static_cast<std::ptrdiff_t>(begin));
      if (!is_there && kept.lost == Kept::Lost::garbage) {
        for (std::uint64_t i = begin; i < stop; i += garbage_bytes) {
          const std::uint64_t garbage = lot.bits(i);
          std::memcpy(&content[i], &garbage, std::min(garbage_bytes, stop - i));
        }
      }
      begin = stop;
    }
  }

  // The directory of a path, and the name in it.
  struct Found {
    std::size_t directory = 0;
    std::string name = {};
  };
  Found find(const std::string& path) const {
    Found found;
    for (std::size_t begin = 1; begin < path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      if (!found.name.empty()) found.directory = nodes_[found.directory].names.at(found.name);
      found.name = path.substr(begin, end - begin);
      begin = end + 1;
    }
    return found;
  }
  // Of the live tree; `never` when there is none.
  std::size_t node_at(const Found& found) const {
    if (found.name.empty()) return 0;
    const auto node = nodes_[found.directory].names.find(found.name);
    return node == nodes_[found.directory].names.end() ? never : node->second;
  }

  void link(std::size_t at, const Found& where, Node node) {
    nodes_.push_back(std::move(node));
    nodes_[where.directory].names[where.name] = nodes_.size() - 1;
    names_.push_back(
        {.at = at, .node = nodes_.size() - 1, .target = where.directory, .target_name = where.name});
  }
  void link_again(std::size_t at, std::size_t node, const Found& where) {
    nodes_[where.directory].names[where.name] = node;
    names_.push_back({.at = at, .node = node, .target = where.directory, .target_name = where.name});
  }
  void unlink(std::size_t at, const Found& where) {
    const std::size_t node = node_at(where);
    if (node == never) return;
    const Directory inside = nodes_[node].names;  // a copy: it changes
    for (const auto& [name, other] : inside) unlink(at, {.directory = node, .name = name});
    nodes_[where.directory].names.erase(where.name);
    names_.push_back({.at = at, .node = node, .source = where.directory, .source_name = where.name});
  }
  void make_directories(std::size_t at, const std::string& path) {
    for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const Found where = find(path.substr(0, end));
      if (node_at(where) == never) link(at, where, {.directory = true});
      if (end >= path.size()) return;
    }
  }
  void write(std::size_t at, std::size_t node, std::uint64_t offset, const std::vector<std::byte>& bytes) {
    contents_.push_back({.at = at, .node = node, .bytes = &bytes, .offset = offset});
    nodes_[node].size = std::max<std::uint64_t>(nodes_[node].size, offset + bytes.size());
  }
  void set_size(std::size_t at, const RecordedOperation& operation) {
    contents_.push_back({.at = at,
                         .node = files_[operation.file],
                         .size = operation.size,
                         .cuts = operation.kind == Kind::truncate});
  }
  void sync(std::size_t at, std::size_t node) {
    for (ContentChange& change : contents_) {
      if (change.node == node && change.durable_at == never) change.durable_at = at;
    }
  }
  void sync_directory(std::size_t at, std::size_t directory) {
    for (NameChange& change : names_) {
      const bool is_in_it = (!change.source_name.empty() && change.source == directory) ||
                            (!change.target_name.empty() && change.target == directory);
      if (is_in_it && change.durable_at == never) change.durable_at = at;
    }
  }

  void take(const RecordedOperation& operation, std::size_t at) {
    switch (operation.kind) {
      case Kind::make_directories:
        return make_directories(at, operation.path);
      case Kind::create:
        link(at, find(operation.path), {});
        return files_.push_back(nodes_.size() - 1);
      case Kind::write:
        return write(at, files_[operation.file], operation.offset, operation.bytes);
      case Kind::allocate:
      case Kind::truncate:
        return set_size(at, operation);
      case Kind::sync:
        return sync(at, files_[operation.file]);
      case Kind::append: {
        const Found where = find(operation.path);
        if (node_at(where) == never) link(at, where, {});
        const std::size_t node = node_at(where);
        return write(at, node, nodes_[node].size, operation.bytes);
      }
      case Kind::link:
        return link_again(at, node_at(find(operation.path)), find(operation.target));
      case Kind::rename:
        return rename(at, find(operation.path), find(operation.target));
      case Kind::remove:
      case Kind::remove_tree:
        return unlink(at, find(operation.path));
      case Kind::sync_directory:
        return sync_directory(at, node_at(find(operation.path)));
      case Kind::mark:
        return;
    }
  }
  void rename(std::size_t at, const Found& source, const Found& target) {
    const std::size_t node = node_at(source);
    nodes_[source.directory].names.erase(source.name);
    nodes_[target.directory].names[target.name] = node;
    names_.push_back({.at = at,
                      .node = node,
                      .source = source.directory,
                      .target = target.directory,
                      .source_name = source.name,
                      .target_name = target.name});
  }

  std::vector<Node> nodes_;         // 0: the root
  std::vector<std::size_t> files_;  // the node of each file of the log
  std::vector<NameChange> names_;
  std::vector<ContentChange> contents_;
};

// A crash just before one operation: what was durable then, and what was not.
class CrashLog::Point {
 public:
  Point(const CrashLog& log, std::size_t cut) : log_(&log), cut_(cut), durable_(log.nodes_.size()) {
    for (const NameChange& change : log.names_) {
      if (change.at < cut && change.durable_at >= cut) ++open_names_;
    }
    for (auto& content : durable_) content = std::make_shared<std::vector<std::byte>>();
    for (const ContentChange& change : log.contents_) {
      if (change.at >= cut) break;
      if (change.durable_at < cut) apply(change, Kept{}, *durable_[change.node]);
      if (change.durable_at >= cut) open_contents_.push_back(&change);
    }
  }

  // Sample 0 has nothing that was not durable, 1 all of it; then each change alone is missing, then each is
  // there alone, and all further ones are drawn by lot.
  MemoryEnv state(std::uint64_t sample) const {
    const Fate fate(open_names_ + open_contents_.size(), cut_, sample);
    std::vector<MemoryEnv::Content> contents = durable_;  // shared until they change
    std::size_t number = open_names_;
    for (const ContentChange* change : open_contents_) {
      MemoryEnv::Content& content = contents[change->node];
      if (content == durable_[change->node]) content = std::make_shared<std::vector<std::byte>>(*content);
      apply(*change, fate.kept(number++, change->at), *content);
    }
    MemoryEnv env;
    put(env, directories(fate), contents, 0, "");
    return env;
  }

  // Whether further samples are hardly new.
  bool is_exhausted(std::uint64_t sample) const {
    constexpr std::size_t too_many = 12;
    return open_contents_.empty() && open_names_ < too_many && sample >= std::uint64_t{4} << open_names_;
  }

 private:
  std::vector<Directory> directories(const Fate& fate) const {
    std::vector<Directory> result(log_->nodes_.size());
    std::size_t number = 0;
    for (const NameChange& change : log_->names_) {
      if (change.at >= cut_) break;
      if (change.durable_at >= cut_ && !fate.keeps_name(number++)) continue;
      const auto source = result[change.source].find(change.source_name);
      const bool is_there = source != result[change.source].end() && source->second == change.node;
      if (!change.source_name.empty() && is_there) result[change.source].erase(source);
      if (!change.target_name.empty()) result[change.target][change.target_name] = change.node;
    }
    return result;
  }
  void put(MemoryEnv& env, const std::vector<Directory>& directories,
           const std::vector<MemoryEnv::Content>& contents, std::size_t directory,
           const std::string& path) const {
    for (const auto& [name, node] : directories[directory]) {
      const std::string inside = path + "/" + name;
      if (log_->nodes_[node].directory) {
        env.put_directory(inside);
        put(env, directories, contents, node, inside);
      } else {
        env.put_file(inside, contents[node]);
      }
    }
  }

  const CrashLog* log_;
  std::size_t cut_;
  std::vector<MemoryEnv::Content> durable_;  // by node
  std::size_t open_names_ = 0;
  std::vector<const ContentChange*> open_contents_;
};

inline CrashLog::Point CrashLog::crash_before(std::size_t cut) const {
  return Point(*this, cut);
}

}  // namespace holdfast::test
