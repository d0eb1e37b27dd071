package pool

// Violation is one thing in etcd that should not be.
type Violation struct {
	Key     string `json:"key"`
	Problem string `json:"problem"`
}
