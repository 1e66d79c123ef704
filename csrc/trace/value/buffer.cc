// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/value/buffer.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <array>
#include <string>

#include "absl/synchronization/mutex.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/value/allocator.h"
#include "csrc/trace/value/bound_buffers.h"
#include "csrc/trace/value/mark_notes.h"

namespace spmd::trace {

namespace {

// Addresses are taken from ranges of memory that cannot be read or written, with one cell per live
// Buffer. A range is reserved when all cells so far are taken, so that a process under an
// address-space limit (`ulimit -v`) uses no more addresses than it has storages.
constexpr size_t kCellBytes = 64;
constexpr size_t kCellsOfRange = size_t{1} << 20;
constexpr size_t kRangeBytes = kCellBytes * kCellsOfRange;
constexpr size_t kMostRanges = 256;
constexpr size_t kCells = kCellsOfRange * kMostRanges;

// Part of a message: " (ulimit -v allows 7812 MiB)", or "" if addresses are not limited.
std::string AddressLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return c10::str(" (ulimit -v allows ", limit.rlim_cur >> 20, " MiB)");
}

class AddressBook {
 public:
  // Takes a cell for `buffer`.
  size_t Take(Buffer* buffer) {
    const absl::MutexLock lock(&mutex_);
    if (free_.empty()) {
      TORCH_CHECK(buffers_.size() < kCells, "torch_spmd: more than ", kCells,
                  " storages alive at once");
      if (buffers_.size() == kCellsOfRange * num_ranges_) Reserve();
      free_.push_back(buffers_.size());
      buffers_.push_back(nullptr);
    }
    const size_t cell = free_.back();
    free_.pop_back();
    buffers_[cell] = buffer;
    return cell;
  }
  void Free(size_t cell) {
    const absl::MutexLock lock(&mutex_);
    buffers_[cell] = nullptr;
    free_.push_back(cell);
  }
  // Requires: `cell` is taken. Its range was reserved before, and is never released.
  void* AddressOf(size_t cell) const {
    return ranges_[cell / kCellsOfRange] + cell % kCellsOfRange * kCellBytes;
  }
  Buffer* Find(const void* address) {
    const absl::MutexLock lock(&mutex_);
    const char* const p = static_cast<const char*>(address);
    for (size_t r = 0; r < num_ranges_; ++r) {
      if (p < ranges_[r] || p >= ranges_[r] + kRangeBytes) continue;
      const size_t cell = r * kCellsOfRange + static_cast<size_t>(p - ranges_[r]) / kCellBytes;
      return cell < buffers_.size() ? buffers_[cell] : nullptr;
    }
    return nullptr;
  }

 private:
  void Reserve() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    void* const range =
        mmap(nullptr, kRangeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(range != MAP_FAILED, "torch_spmd: cannot reserve ", kRangeBytes >> 20,
                " MiB of addresses for storages", AddressLimit());
    ranges_[num_ranges_++] = static_cast<char*>(range);
  }

  absl::Mutex mutex_;
  // Written under the mutex; a range that a cell is in is there, so AddressOf takes none.
  std::array<char*, kMostRanges> ranges_{};
  size_t num_ranges_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Buffer*> buffers_ ABSL_GUARDED_BY(mutex_);  // by cell; null if free
  std::vector<size_t> free_ ABSL_GUARDED_BY(mutex_);
};

AddressBook& Addresses() {
  static auto* book = new AddressBook;
  return *book;
}

}  // namespace

Buffer::Buffer(Key, const BaseForm& form)
    : form(form), cell_(Addresses().Take(this)), address_(Addresses().AddressOf(cell_)) {}
Buffer::~Buffer() {
  Addresses().Free(cell_);
  Bindings::Strike(*this);
}

c10::DataPtr NewDataPtr(const BaseForm& form) {
  auto* const buffer = new Buffer(Buffer::Key{}, form);
  return c10::DataPtr(buffer->address_, buffer, &Buffer::Drop, TheDevice());
}

c10::Storage Buffer::NewStorage(int64_t nbytes, const BaseForm& form) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, NewDataPtr(form), DeviceAllocatorInstance(),
      /*resizable=*/true));
}

void Buffer::Drop(void* context) { delete static_cast<Buffer*>(context); }

Buffer* Buffer::AtAddressOf(const c10::Storage& storage) {
  const void* const address = storage.data_ptr().get();
  if (storage.device_type() != kDeviceType || address == nullptr) return nullptr;
  return Addresses().Find(address);  // from_blob on an address of this device
}

bool Buffer::IsOurs(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && Of(tensor.storage()) != nullptr;
}

void Buffer::Rebase(BaseForm f) {
  // The layout and mark of the old form say nothing about another form.
  if (f.sizes != form.sizes) {
    settled.reset();
    like.reset();
  }
  if (f.sizes.size() != form.sizes.size()) mark.reset();
  form = std::move(f);
  recipes.clear();
  if (MarkNotes* const notes = NotesOf(*this)) notes->parts.clear();  // of views of the old form
}

MarkNotes* NotesOf(const Buffer& buffer) { return buffer.notes_.get(); }

MarkNotes& MakeNotes(Buffer& buffer) {
  if (buffer.notes_ == nullptr) buffer.notes_ = std::make_unique<MarkNotes>();
  return *buffer.notes_;
}

}  // namespace spmd::trace
