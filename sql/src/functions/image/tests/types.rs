//! Result types, nulls, column arguments, and what is refused while planning.

use super::*;

fn type_of(name: &str, args: &[Arg]) -> String {
    TensorType::of(&call(name, args).unwrap().0).unwrap().to_string()
}

#[test]
fn a_literal_size_makes_the_result_fixed() {
    let ragged = || varying::<u8>(&[4, 6, 3], &[Some(&[1; 72])]);
    assert_eq!(type_of("image_resize", &[ragged(), int(2), int(3)]), "uint8[2,3,?]");
    assert_eq!(type_of("image_resize", &[fixed::<u8>(&[4, 6, 3], &[Some(&[1; 72])]), int(2), int(3)]), "uint8[2,3,3]");
    assert_eq!(type_of("image_resize_short", &[fixed::<u8>(&[4, 6, 3], &[Some(&[1; 72])]), int(2)]), "uint8[2,3,3]");
    assert_eq!(type_of("image_crop", &[fixed::<u8>(&[4, 6], &[Some(&[1; 24])]), int(1), int(1), int(3), int(2)]), "uint8[1,2]");
    let field = call("image_resize", &[fixed::<u8>(&[4, 6, 3], &[Some(&[1; 72])]), int(2), int(3)]).unwrap().0;
    assert_eq!(field.metadata()["ARROW:extension:name"], "arrow.fixed_shape_tensor");
    assert_eq!(field.metadata()["ARROW:extension:metadata"], r#"{"shape":[2,3,3]}"#);
    assert_eq!(field.as_ref().clone().with_name("x"), forebay_tensor_field());
}

/// The field as every other part of the system writes it.
fn forebay_tensor_field() -> Field {
    let metadata = [
        ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
        ("ARROW:extension:metadata".to_owned(), r#"{"shape":[2,3,3]}"#.to_owned()),
    ];
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    Field::new("x", DataType::FixedSizeList(item, 18), false).with_metadata(metadata.into())
}

#[test]
fn nulls_pass_through_as_nulls() {
    for image in [fixed::<u8>(&[1, 2], &[None, Some(&[1, 2])]), varying::<u8>(&[1, 2], &[None, Some(&[1, 2])])] {
        let out = call("image_flip_horizontal", &[image]).unwrap();
        assert!(out.0.is_nullable());
        assert!(row::<u8>(&out, 0).is_none());
        assert_eq!(row::<u8>(&out, 1).unwrap().1, [2, 1]);
    }
    let image = fixed::<u8>(&[1, 2], &[Some(&[10, 20]), Some(&[10, 20])]);
    let out = call("image_brightness", &[image, numbers(&[None, Some(2.0)])]).unwrap();
    assert!(row::<u8>(&out, 0).is_none());
    assert_eq!(row::<u8>(&out, 1).unwrap().1, [20, 40]);
}

#[test]
fn sizes_may_come_from_columns() {
    let image = fixed::<u8>(&[3, 4], &[Some(&[7; 12]), Some(&[7; 12])]);
    let sizes = numbers(&[Some(2.0), Some(5.0)]);
    let out = call("image_resize", &[image, sizes, int(3)]).unwrap();
    assert_eq!(row::<u8>(&out, 0).unwrap().0, [2, 3]);
    assert_eq!(row::<u8>(&out, 1).unwrap().0, [5, 3]);
    let image = fixed::<u8>(&[1, 3], &[Some(&[1, 2, 3]), Some(&[1, 2, 3])]);
    let boxes = [numbers(&[Some(0.0), Some(1.0)]), int(0), numbers(&[Some(1.0), Some(3.0)]), int(1)];
    let out = call("image_crop", &[&[image][..], &boxes[..]].concat()).unwrap();
    assert_eq!(row::<u8>(&out, 0).unwrap().1, [1]);
    assert_eq!(row::<u8>(&out, 1).unwrap().1, [2, 3]);
}

#[test]
fn slices_of_columns_are_read_from_their_start() {
    let sliced = |arg: Arg| Arg(arg.0.clone(), ColumnarValue::Array(array(&arg).slice(1, 2)));
    let rows: &[Option<&[u8]>] = &[Some(&[1, 2]), Some(&[3, 4]), Some(&[5, 6])];
    for image in [fixed(&[1, 2], rows), varying(&[1, 2], rows)] {
        let out = call("image_flip_horizontal", &[sliced(image)]).unwrap();
        assert_eq!((row::<u8>(&out, 0).unwrap().1, row::<u8>(&out, 1).unwrap().1), (vec![4, 3], vec![6, 5]));
    }
}

#[test]
fn zero_rows_give_zero_rows() {
    for image in [fixed::<u8>(&[2, 2], &[]), varying::<u8>(&[2, 2], &[])] {
        assert_eq!(array(&call("image_resize", &[image, int(3), int(3)]).unwrap()).len(), 0);
    }
    assert_eq!(array(&call("image_decode", &[files(&[])]).unwrap()).len(), 0);
}

#[test]
fn wrong_calls_say_what_is_right() {
    let image = || fixed::<u8>(&[4, 4], &[Some(&[0; 16])]);
    let cases: &[(&str, Vec<Arg>, &str)] = &[
        ("image_resize", vec![image(), int(2)], "image_resize(image, height, width [, method]) was given 2 arguments"),
        ("image_resize", vec![image(), int(0), int(2)], "`height` must be from 1 to 65,535, not 0"),
        ("image_resize", vec![image(), real(2.5), int(2)], "`height` must be a whole number, not 2.5"),
        ("image_resize", vec![image(), int(2), int(2), word("cubic")], "there are 'bilinear', 'bicubic', 'lanczos' and 'nearest'"),
        ("image_resize", vec![image(), word("x"), int(2)], "`height` takes a whole number, not Utf8"),
        ("image_crop_center", vec![image(), int(5), int(2)], "smaller than the crop of 5 by 2"),
        ("image_crop", vec![image(), int(2), int(0), int(2), int(1)], "is empty"),
        ("image_crop", vec![image(), int(2), int(0), int(9), int(1)], "not inside the image, which is 4 high and 4 wide"),
        ("image_gamma", vec![fixed::<f32>(&[1, 1], &[]), real(1.0)], "works on uint8 images"),
        ("image_normalize", vec![image(), list(&[1.0, 2.0]), list(&[1.0])], "`mean` has 2 numbers for an image of 1 channels"),
        ("image_normalize", vec![image(), list(&[1.0]), list(&[0.0])], "must be positive"),
        ("image_flip_random", vec![image()], "only works in a step of a pipeline"),
        ("image_to_hwc", vec![image()], "needs three axes"),
        ("image_resize", vec![fixed::<u8>(&[3, 32, 32], &[]), int(2), int(2)], "resize before image_to_chw"),
        ("image_resize", vec![column(Arc::new(UInt64Array::from(vec![1]))), int(2), int(2)], "`image_decode` makes one"),
        ("image_decode", vec![word("x")], "takes the bytes of a file"),
        ("image_decode", vec![files(&[]), word("bgr")], "there are 'rgb', 'gray' and 'unchanged'"),
        ("image_encode", vec![image(), word("gif")], "there are 'png', 'jpeg' and 'webp'"),
    ];
    for (name, args, want) in cases {
        let got = error(name, args);
        assert!(got.contains(want), "{name}: {got:?} does not say {want:?}");
        assert!(got.contains(name) || got.contains("resize"), "{got:?} does not name {name}");
    }
}

#[test]
fn elements_are_checked() {
    let tensor = TensorType { element: Element::U8, dims: vec![Some(1), Some(1)] };
    let field = Field::new("x", DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Int64, false)), 1), false)
        .with_metadata(tensor.field("x", false).metadata().clone());
    assert!(TensorType::of(&field).unwrap_err().to_string().contains("not of Int64"));
    let floats = fixed::<f32>(&[1, 1], &[Some(&[1.0])]);
    assert_eq!(array(&floats).as_fixed_size_list().values().as_primitive::<Float32Type>().value(0), 1.0);
    assert_eq!(array(&fixed::<u8>(&[1, 1], &[Some(&[3])])).as_fixed_size_list().values().as_primitive::<UInt8Type>().value(0), 3);
}
