// Package own checks that other users of the host cannot put their files in the place of berth's: in
// the folders in which it keeps its state, and at the sockets to which its clients connect.
//
// Root and the user of this process count as its own users. The links and folders on the way to a folder
// belong to them. Each folder above may be written by them and by groups, or has the sticky bit, so that
// nobody but an owner replaces what is in it.
package own
