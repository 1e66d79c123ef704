// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/value/buffer.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <new>
#include <string>

#include "absl/synchronization/mutex.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/tensor_impl.h"
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

// The header precedes each Buffer in memory, in the same cache line as the members that every op
// looks at.
struct alignas(8) Header {
  uint32_t cell;
  std::atomic<bool> alive;
  bool has_notes;
};
static_assert(alignof(Buffer) <= sizeof(Header));
Header* HeaderOf(void* memory) { return static_cast<Header*>(memory) - 1; }
const Header* HeaderOf(const void* memory) { return static_cast<const Header*>(memory) - 1; }

// The notes of a Buffer are behind it in memory, since few Buffers have any.
MarkNotes*& NotesBehind(const Buffer& buffer) {
  auto* const memory = const_cast<char*>(reinterpret_cast<const char*>(&buffer));
  return *reinterpret_cast<MarkNotes**>(memory + sizeof(Buffer));
}

class AddressBook {
 public:
  // Allocates memory for a Buffer, with a cell of its own.
  void* Allocate(size_t bytes) {
    const absl::MutexLock lock(&mutex_);
    if (free_.empty()) {
      TORCH_CHECK(owners_.size() < kCells, "torch_spmd: more than ", kCells,
                  " storages alive at once");
      if (owners_.size() == kCellsOfRange * num_ranges_) Reserve();
      free_.push_back(owners_.size());
      owners_.push_back(nullptr);
    }
    auto* const header = static_cast<Header*>(
        ::operator new(sizeof(Header) + bytes + sizeof(MarkNotes*), kCacheLine));
    header->cell = static_cast<uint32_t>(free_.back());
    free_.pop_back();
    owners_[header->cell] = header;
    new (&header->alive) std::atomic<bool>(false);
    return header + 1;
  }
  void Free(void* memory) {
    Header* const header = HeaderOf(memory);
    {
      const absl::MutexLock lock(&mutex_);
      owners_[header->cell] = nullptr;
      free_.push_back(header->cell);
    }
    ::operator delete(header, kCacheLine);
  }
  // The header's range was reserved before its memory was allocated, and is never released.
  void* AddressOf(const Header& header) const {
    return ranges_[header.cell / kCellsOfRange] + header.cell % kCellsOfRange * kCellBytes;
  }
  Buffer* Find(const void* address) {
    const absl::MutexLock lock(&mutex_);
    const char* const p = static_cast<const char*>(address);
    for (size_t r = 0; r < num_ranges_; ++r) {
      if (p < ranges_[r] || p >= ranges_[r] + kRangeBytes) continue;
      const size_t cell = r * kCellsOfRange + static_cast<size_t>(p - ranges_[r]) / kCellBytes;
      Header* const header = cell < owners_.size() ? owners_[cell] : nullptr;
      if (header == nullptr || !header->alive.load()) return nullptr;
      return reinterpret_cast<Buffer*>(header + 1);
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
  std::vector<Header*> owners_ ABSL_GUARDED_BY(mutex_);  // by cell; null if free
  std::vector<size_t> free_ ABSL_GUARDED_BY(mutex_);
};

AddressBook& Addresses() {
  static auto* book = new AddressBook;
  return *book;
}

void FreeMemory(void* memory) { Addresses().Free(memory); }

}  // namespace

Buffer::Buffer(Key, const BaseForm& form) : form(form) {
  Header* const header = HeaderOf(this);
  address_ = Addresses().AddressOf(*header);
  header->alive.store(true, std::memory_order_relaxed);
  header->has_notes = false;
}
Buffer::~Buffer() {
  Bindings::Strike(*this);
  delete NotesOf(*this);
  HeaderOf(this)->alive.store(false, std::memory_order_relaxed);
}

void* Buffer::operator new(size_t bytes) {
  void* const memory = BlockList<&FreeMemory>::Take();
  return memory != nullptr ? memory : Addresses().Allocate(bytes);
}
void Buffer::operator delete(void* memory) { BlockList<&FreeMemory>::Give(memory); }

c10::DataPtr NewDataPtr(const BaseForm& form) {
  auto* const buffer = new Buffer(Buffer::Key{}, form);
  return c10::DataPtr(buffer->address_, buffer, &Buffer::Drop, TheDevice());
}

c10::Storage Buffer::NewStorage(int64_t nbytes, const BaseForm& form) {
  return c10::Storage(c10::make_intrusive<DeviceStorageImpl>(
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

MarkNotes* NotesOf(const Buffer& buffer) {
  return HeaderOf(&buffer)->has_notes ? NotesBehind(buffer) : nullptr;
}

MarkNotes& MakeNotes(Buffer& buffer) {
  if (!HeaderOf(&buffer)->has_notes) NotesBehind(buffer) = new MarkNotes;
  HeaderOf(static_cast<void*>(&buffer))->has_notes = true;
  return *NotesBehind(buffer);
}

}  // namespace spmd::trace
