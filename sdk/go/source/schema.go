package source

// Schema describes a structured key or value; it is Kafka Connect's.
type Schema struct {
	Type     SchemaType
	Optional bool
	Name     string
	// Version is nil where there is none.
	Version    *int32
	Doc        string
	Parameters map[string]string
	// Default is nil where there is none; see Struct for what it may be.
	Default any
	// Fields of a struct.
	Fields []Field
	// Key of a map.
	Key *Schema
	// Value of a map, or element of an array.
	Value *Schema
}

// Field is a field of a struct.
type Field struct {
	Name   string
	Schema *Schema
}

// SchemaType is the type of a Schema; the numbers are those of the protocol.
type SchemaType int32

// The types.
const (
	TypeAny     SchemaType = 0
	TypeInt8    SchemaType = 1
	TypeInt16   SchemaType = 2
	TypeInt32   SchemaType = 3
	TypeInt64   SchemaType = 4
	TypeFloat32 SchemaType = 5
	TypeFloat64 SchemaType = 6
	TypeBoolean SchemaType = 7
	TypeString  SchemaType = 8
	TypeBytes   SchemaType = 9
	TypeArray   SchemaType = 10
	TypeMap     SchemaType = 11
	TypeStruct  SchemaType = 12
)

// Struct is a structured value: the fields' values in the schema's order. In structured values null is nil, and the others are bool, int64 (any integer type),
// float64, string, []byte, []any (an array), Map and Struct.
type Struct []any

// Map is a map of structured values, in order, or an object without a schema.
type Map []Entry

// Entry is an entry of a Map. The key is a string where there is no schema.
type Entry struct{ Key, Value any }
