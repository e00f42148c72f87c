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
	// Default is nil where there is none.
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
