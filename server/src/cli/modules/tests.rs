#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

fn pipeline(module: &str) -> PipelineSpec {
    let text = format!("name = \"d\"\n[source]\nuri = \"a.csv\"\n[[steps]]\nname = \"s\"\npython = \"{module}:f\"\n");
    forebay_core::pipeline::parse(&text, "p.toml", &[]).unwrap().spec
}

fn gathered(files: &[(&str, &str)], module: &str) -> Result<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    Ok(gather(folder.path(), &pipeline(module), "p.toml")?.into_keys().collect())
}

#[test]
fn imports_from_the_folder_go_along_and_others_do_not() {
    let files = [
        ("augment.py", "import numpy as np\nimport helper, other as o\nfrom tools.shapes import (\n    square,  # one\n    circle,\n)\n"),
        ("helper.py", "def f():\n    from late import x\n"),
        ("other.py", "import augment\n"),
        ("late.py", ""),
        ("tools/__init__.py", ""),
        ("tools/shapes.py", "from . import base\nfrom .deep import \\\n    thing\nfrom .. import helper\n"),
        ("tools/base.py", ""),
        ("tools/deep.py", "from ...outside import no\n"),
        ("unrelated.py", ""),
    ];
    assert_eq!(
        gathered(&files, "augment").unwrap(),
        ["augment", "helper", "late", "other", "tools", "tools.base", "tools.deep", "tools.shapes"]
    );
}

#[test]
fn a_dotted_module_brings_its_packages() {
    let files = [("pkg/__init__.py", "from .a import f\n"), ("pkg/a.py", "def f(batch): return batch\n")];
    assert_eq!(gathered(&files, "pkg.a").unwrap(), ["pkg", "pkg.a"]);
    // A folder without __init__.py is a package too.
    assert_eq!(gathered(&[("pkg/a.py", "")], "pkg.a").unwrap(), ["pkg.a"]);
}

#[test]
fn a_missing_module_is_named() {
    let error = gathered(&[], "nowhere").unwrap_err();
    assert_eq!(error.kind, Kind::NotFound);
    assert!(error.message.starts_with("p.toml: no module `nowhere` beside it"), "{error}");
}
