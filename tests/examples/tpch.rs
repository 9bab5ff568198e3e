//! TPC-H without a download: `tpch SCALE FOLDER [PARTS]` writes each table as `FOLDER/TABLE/N.csv`, large ones in PARTS files, and the 22 queries as
//! `FOLDER/queries/N.sql`, with the parameters that the benchmark validates by. Query 15's view stands in `15.view.sql`.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tpchgen::csv::{CustomerCsv, LineItemCsv, NationCsv, OrderCsv, PartCsv, PartSuppCsv, RegionCsv, SupplierCsv};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator, RegionGenerator,
    SupplierGenerator,
};
use tpchgen::q_and_a::queries::query;

/// What stands for `:1`, `:2`, ... in each query.
const PARAMETERS: [&[&str]; 22] = [
    &["90"],
    &["15", "BRASS", "EUROPE"],
    &["BUILDING", "1995-03-15"],
    &["1993-07-01"],
    &["ASIA", "1994-01-01"],
    &["1994-01-01", "0.06", "24"],
    &["FRANCE", "GERMANY"],
    &["BRAZIL", "AMERICA", "ECONOMY ANODIZED STEEL"],
    &["green"],
    &["1993-10-01"],
    &["GERMANY", "0.0001"],
    &["MAIL", "SHIP", "1994-01-01"],
    &["special", "requests"],
    &["1995-09-01"],
    &["1996-01-01"],
    &["Brand#45", "MEDIUM POLISHED", "49", "14", "23", "45", "19", "3", "36", "9"],
    &["Brand#23", "MED BOX"],
    &["300"],
    &["Brand#12", "Brand#23", "Brand#34", "1", "10", "20"],
    &["forest", "1994-01-01", "CANADA"],
    &["SAUDI ARABIA"],
    &["13", "31", "23", "29", "30", "18", "17"],
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (scale, folder, parts) = match args.as_slice() {
        [scale, folder] => (scale, folder, 1),
        [scale, folder, parts] => (scale, folder, parts.parse().context("the number of files")?),
        _ => bail!("usage: tpch SCALE FOLDER [PARTS]"),
    };
    let scale: f64 = scale.parse().context("the scale")?;
    let folder = PathBuf::from(folder);
    tables(scale, &folder, parts)?;
    queries(&folder.join("queries"))
}

fn tables(scale: f64, folder: &Path, parts: i32) -> Result<()> {
    write(folder, "nation", 1, NationCsv::header(), NationGenerator::new(scale, 1, 1).iter().map(NationCsv::new))?;
    write(folder, "region", 1, RegionCsv::header(), RegionGenerator::new(scale, 1, 1).iter().map(RegionCsv::new))?;
    write(folder, "supplier", 1, SupplierCsv::header(), SupplierGenerator::new(scale, 1, 1).iter().map(SupplierCsv::new))?;
    for part in 1..=parts {
        let rows = PartGenerator::new(scale, part, parts);
        write(folder, "part", part, PartCsv::header(), rows.iter().map(PartCsv::new))?;
        let rows = CustomerGenerator::new(scale, part, parts);
        write(folder, "customer", part, CustomerCsv::header(), rows.iter().map(CustomerCsv::new))?;
        let rows = PartSuppGenerator::new(scale, part, parts);
        write(folder, "partsupp", part, PartSuppCsv::header(), rows.iter().map(PartSuppCsv::new))?;
        let rows = OrderGenerator::new(scale, part, parts);
        write(folder, "orders", part, OrderCsv::header(), rows.iter().map(OrderCsv::new))?;
        let rows = LineItemGenerator::new(scale, part, parts);
        write(folder, "lineitem", part, LineItemCsv::header(), rows.iter().map(LineItemCsv::new))?;
    }
    Ok(())
}

fn write<T: Display>(folder: &Path, table: &str, part: i32, header: &str, rows: impl Iterator<Item = T>) -> Result<()> {
    let folder = folder.join(table);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{part:02}.csv"));
    let mut file = BufWriter::new(File::create(&path).with_context(|| path.display().to_string())?);
    writeln!(file, "{header}")?;
    for row in rows {
        writeln!(file, "{row}")?;
    }
    Ok(file.flush()?)
}

fn queries(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for (number, parameters) in (1..).zip(PARAMETERS) {
        let mut text = query(number).context("a query")?.trim().to_owned();
        // The last first: `:1` begins `:10`.
        for (place, value) in parameters.iter().enumerate().rev() {
            text = text.replace(&format!(":{}", place + 1), value);
        }
        // A precision that no engine of today knows.
        text = text.replace("day (3)", "day");
        if number == 15 {
            text = with_view(&text, folder)?;
        }
        std::fs::write(folder.join(format!("{number}.sql")), text.trim_end_matches(';'))?;
    }
    Ok(())
}

/// Query 15 makes a view, asks it, and drops it: the view's text goes to a file of its own.
fn with_view(text: &str, folder: &Path) -> Result<String> {
    let text = text.replace("revenue:s", "revenue");
    let mut statements = text.split(';').map(str::trim);
    let (made, asked) = (statements.next().context("the view")?, statements.next().context("the query")?);
    let (_, body) = made.split_once(" as\n").context("the view's text")?;
    let view = format!("select supplier_no, total_revenue from (\n{body}\n) as revenues (supplier_no, total_revenue)");
    std::fs::write(folder.join("15.view.sql"), view)?;
    Ok(asked.to_owned())
}
