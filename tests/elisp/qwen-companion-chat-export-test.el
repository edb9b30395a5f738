;;; qwen-companion-chat-export-test.el --- Tests of exported chats  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What is in the file, and what a hostile text does not do there.

;;; Code:

(require 'qwen-companion-chat-test-helper)
(require 'qwen-companion-chat-export)
(require 'org)
(require 'org-element)

(defun qwen-companion-chat-export-test--exported (name)
  "Export the chat to the file NAME; return its text."
  (qwen-companion-chat-export (expand-file-name name))
  (qwen-companion-test-file-text name))

(defun qwen-companion-chat-export-test--tree ()
  "Export the chat as Org, and return the tree that Org makes of it."
  (qwen-companion-chat-export-test--exported "chat.org")
  (with-temp-buffer
    (insert-file-contents "chat.org")
    (delay-mode-hooks (org-mode))
    (org-element-parse-buffer)))

(defun qwen-companion-chat-export-test--talk ()
  "Let a conversation of all kinds be told."
  (qwen-companion-chat-test-session :state 'idle :title "A talk")
  (qwen-companion-chat-test-turn
   (qwen-companion-chat-test-text 'user "Do **it**" :by 'me)
   (qwen-companion-chat-test-text 'thought "Hm.\nWell.")
   (list :kind 'plan :turn "t1" :steps '((:text "one" :status done) (:text "two" :status pending)))
   (list :kind 'tool :turn "t1" :id "c1" :status 'done :title "List files"
         :command "ls" :output "* a\n#+b" :output-more 5)
   (qwen-companion-chat-test-text
    'answer "# Done\n* `a` and **b**, see [here](https://example.org)\n```python\n* x\n```")))

(ert-deftest qwen-companion-chat-export-test-markdown ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-export-test--talk)
    (should (equal "# A talk

## You

Do **it**

> Hm.
> Well.

Plan
- [x] one
- [ ] two

*done: List files*

```sh
ls
```

```text
* a
#+b
```

*5 more characters omitted*

# Done
* `a` and **b**, see [here](https://example.org)
```python
* x
```
"
                   (qwen-companion-chat-export-test--exported "chat.md")))))

(ert-deftest qwen-companion-chat-export-test-org ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-export-test--talk)
    (should (equal "* A talk

** You

Do *it*

#+begin_quote
Hm.
Well.
#+end_quote

Plan
- [X] one
- [ ] two

- done: List files

#+begin_src sh
ls
#+end_src

#+begin_src text
,* a
,#+b
#+end_src

- 5 more characters omitted

*** Done
- ~a~ and *b*, see [[https://example.org][here]]
#+begin_src python
,* x
#+end_src
"
                   (qwen-companion-chat-export-test--exported "chat.org")))))

(ert-deftest qwen-companion-chat-export-test-code-that-does-not-end ()
  "Text after it is not code."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "```c\nint")
    (qwen-companion-chat-test-turn '(:kind end :turn "t1" :outcome cancelled))
    (should (string-suffix-p "```c\nint\n```\n\n*Cancelled*\n"
                             (qwen-companion-chat-export-test--exported "chat.md")))
    (should (string-suffix-p "#+begin_src c\nint\n#+end_src\n\n- Cancelled\n"
                             (qwen-companion-chat-export-test--exported "chat.org")))))

(ert-deftest qwen-companion-chat-export-test-hostile-org ()
  "No keyword, no block and no heading of the file is the model's."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say
     "#+INCLUDE: \"/etc/passwd\"\n #+begin_src emacs-lisp :results silent\n(evil)\n#+end_src\n```x :eval yes\n#+end_example\n#+CALL: evil()\n```\n* star")
    (let ((tree (qwen-companion-chat-export-test--tree)))
      (should-not (org-element-map tree '(keyword babel-call) #'identity))
      (should (equal '("x") (org-element-map tree 'src-block
                              (lambda (block) (org-element-property :language block)))))
      (should-not (org-element-map tree 'src-block
                    (lambda (block) (org-element-property :parameters block)))))))

(ert-deftest qwen-companion-chat-export-test-nothing-of-the-models-runs ()
  "No link, call, macro or drawer is the model's, wherever it writes one."
  (let ((hostile (list "[[elisp:(evil)][here]]" "[[shell:evil]]" "<elisp:(evil)>"
                       "see elisp:(evil) and shell:evil" "file+sys:evil.sh"
                       "src_sh{evil}" "src_emacs-lisp[:results raw]{(evil)}" "call_evil()"
                       "{{{evil(1)}}}" "@@latex:\\input{/etc/passwd}@@" "\\input{/etc/passwd}"
                       "\\(\\input{x}\\)" "$\\input{x}$" "<<evil>>" "<<<evil>>>"
                       "<%%(evil)>" "`[[elisp:(evil)]]` a`[[shell:evil]]`b" "**[[elisp:(evil)]]**"
                       "[x](https://example.org) [[elisp:(evil)]]"))
        (lines (list ":PROPERTIES:\n:header-args: :var x=(evil)\n:END:" ":LOGBOOK:\n:END:"
                     "%%(evil)" "SCHEDULED: <2030-01-01>" "DEADLINE: <2030-01-01>"
                     "CLOCK: [2030-01-01]--[2030-01-02]" "\\begin{evil}\nx\n\\end{evil}"
                     "# [[elisp:(evil)]]\n:PROPERTIES:\n:x: y\n:END:")))
    (qwen-companion-chat-test-with
      (qwen-companion-chat-test-session :state 'idle :title "[[elisp:(evil)]]\n#+INCLUDE: \"x\"")
      (qwen-companion-chat-test-say
       (concat (mapconcat #'identity (append hostile lines) "\n\n")
               "\n\n" (mapconcat (lambda (text) (concat "- " text "\n# " text "\n> " text))
                                 hostile "\n")))
      (let ((tree (qwen-companion-chat-export-test--tree)))
        (should-not (org-element-map tree
                        '( inline-src-block inline-babel-call babel-call macro
                           export-snippet target radio-target drawer property-drawer
                           planning clock diary-sexp latex-environment keyword node-property)
                      (lambda (element)
                        (list (org-element-type element) (org-element-interpret-data element)))))
        (should-not (org-element-map tree 'latex-fragment
                      (lambda (fragment)
                        (string-match-p "\\\\[a-z(]" (org-element-property :value fragment)))
                      nil t))
        (should-not (org-element-map tree 'timestamp
                      (lambda (stamp) (eq 'diary (org-element-property :type stamp))) nil t))
        (should (equal '("https")
                       (delete-dups (org-element-map tree 'link
                                      (lambda (link) (org-element-property :type link))))))))))

(ert-deftest qwen-companion-chat-export-test-org-leaves-names-and-code ()
  "Names and code have no escapes added: users copy from them."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say
     "Run `call_tool(1)` or `printf \\n <<EOF`, see src_dir, call_tool and a<<b.")
    (should (string-suffix-p
             "\n\nRun ~call_tool(1)~ or ~printf \\n <<EOF~, see src_dir, call_tool and a<<b.\n"
             (qwen-companion-chat-export-test--exported "chat.org")))))

(ert-deftest qwen-companion-chat-export-test-no-local-variables ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-session :state 'idle :title "-*- fill-column: 7 -*-")
    (qwen-companion-chat-test-say (concat "Local " "Variables:\nfill-column: 8\nEnd:"))
    (dolist (name '("chat.md" "chat.org"))
      (qwen-companion-chat-export-test--exported name)
      (with-temp-buffer
        (insert-file-contents name)
        (setq buffer-file-name (expand-file-name name))
        (let ((enable-local-variables :all))
          (hack-local-variables))
        (set-buffer-modified-p nil)
        (should-not (local-variable-p 'fill-column))))))

(ert-deftest qwen-companion-chat-export-test-existing-file-is-asked-about ()
  (qwen-companion-chat-test-with
    (write-region "mine" nil "chat.md" nil 'silent)
    (qwen-companion-test-answering nil
      (should-error (qwen-companion-chat-export (expand-file-name "chat.md"))
                    :type 'file-already-exists))
    (should (equal "mine" (qwen-companion-test-file-text "chat.md"))))
  (with-temp-buffer
    (should-error (qwen-companion-chat-export "/nowhere") :type 'user-error)))

(provide 'qwen-companion-chat-export-test)
;;; qwen-companion-chat-export-test.el ends here
