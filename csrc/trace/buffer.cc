// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/buffer.h"

#include <sys/mman.h>

#include <mutex>

#include "csrc/trace/device.h"

namespace spmd::trace {

namespace {

// Addresses: a range that nobody can read or write, one cell per live Buffer.
constexpr size_t kCellBytes = 64;
constexpr size_t kCells = size_t{1} << 28;

class AddressBook {
 public:
  AddressBook() {
    void* range = mmap(nullptr, kCellBytes * kCells, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(range != MAP_FAILED, "torch_spmd: cannot reserve addresses for storages");
    begin_ = static_cast<char*>(range);
  }
  void* Take(Buffer* buffer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t cell;
    if (!free_.empty()) {
      cell = free_.back();
      free_.pop_back();
      owners_[cell] = buffer;
    } else {
      cell = owners_.size();
      TORCH_CHECK(cell < kCells, "torch_spmd: more than ", kCells, " storages alive at once");
      owners_.push_back(buffer);
    }
    return begin_ + cell * kCellBytes;
  }
  void Give(void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t cell = (static_cast<char*>(address) - begin_) / kCellBytes;
    owners_[cell] = nullptr;
    free_.push_back(cell);
  }
  Buffer* Find(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const char* p = static_cast<const char*>(address);
    if (p < begin_ || p >= begin_ + kCellBytes * owners_.size()) return nullptr;
    return owners_[(p - begin_) / kCellBytes];
  }

 private:
  std::mutex mutex_;
  char* begin_ = nullptr;
  std::vector<Buffer*> owners_;
  std::vector<size_t> free_;
};

AddressBook& Addresses() {
  static auto* book = new AddressBook;
  return *book;
}

void DropBuffer(void* context) { c10::raw::intrusive_ptr::decref(static_cast<Buffer*>(context)); }

}  // namespace

Buffer::Buffer(Key) { address_ = Addresses().Take(this); }
Buffer::~Buffer() { Addresses().Give(address_); }

c10::DataPtr MakeDataPtr(Buffer* buffer) {
  return c10::DataPtr(buffer->address_, buffer, &DropBuffer, TheDevice());
}

c10::DataPtr NewDataPtr() {
  return MakeDataPtr(c10::make_intrusive<Buffer>(Buffer::Key{}).release());
}

c10::Storage Buffer::NewStorage(int64_t nbytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, NewDataPtr(), DeviceAllocatorInstance(),
      /*resizable=*/true));
}

Buffer* Buffer::Of(const c10::Storage& storage) {
  if (!storage) return nullptr;
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get_deleter() == &DropBuffer) return static_cast<Buffer*>(data.get_context());
  if (storage.device_type() != kDeviceType || data.get() == nullptr) return nullptr;
  return Addresses().Find(data.get());  // from_blob on our own address
}

bool Buffer::IsOurs(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && Of(tensor.storage()) != nullptr;
}

void Buffer::Rebase(BaseForm f) {
  form = std::move(f);
  recipes.clear();
}

}  // namespace spmd::trace
