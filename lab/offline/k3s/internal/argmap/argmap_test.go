package argmap

import (
	"reflect"
	"testing"
)

func TestASitesFlagReplacesTheDefaultAndMayBeRepeated(t *testing.T) {
	got := Merge(map[string]string{"a": "1", "b": "2", "plugins": "X"}, []string{"a=9", "c=3", "c=4", "--d", "plugins+=Y"})
	want := []string{"--a=9", "--b=2", "--c=3", "--c=4", "--d=true", "--plugins=X,Y"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestHasFindsAKeyInEveryForm(t *testing.T) {
	for _, flag := range []string{"authentication-config=/x", "--authentication-config=/x"} {
		if !Has([]string{"v=2", flag}, "authentication-config") {
			t.Errorf("%q was not found", flag)
		}
	}
	if Has([]string{"authentication-config-file=/x"}, "authentication-config") {
		t.Error("a longer key was taken for it")
	}
}
