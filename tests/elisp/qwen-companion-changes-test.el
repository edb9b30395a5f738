;;; qwen-companion-changes-test.el --- Tests of the buffer of changes  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-changes-test-helper)

(defconst qwen-companion-changes-test--old
  (concat (mapconcat #'number-to-string (number-sequence 1 40) "\n") "\n")
  "Forty lines.")

(defun qwen-companion-changes-test--new (&rest changes)
  "Return the text of forty lines with CHANGES: number and text of each line.
A text that is nil removes the line."
  (let ((lines (split-string qwen-companion-changes-test--old "\n" t)))
    (cl-loop for (number text) on changes by #'cddr
             do (setf (nth (1- number) lines) text))
    (concat (mapconcat #'identity (delq nil lines) "\n") "\n")))

(defun qwen-companion-changes-test--holds (&rest changes)
  "Check that a.txt has forty lines with CHANGES.
See `qwen-companion-changes-test--new'."
  (should (equal (apply #'qwen-companion-changes-test--new changes) (qwen-companion-changes-test-bytes "a.txt"))))

(defmacro qwen-companion-changes-test--with-hunks (&rest body)
  "Run BODY where a turn has changed the lines 5, 20 and 35 of a.txt."
  (declare (indent 0) (debug t))
  `(qwen-companion-changes-test-with (list (list "a.txt" qwen-companion-changes-test--old))
     (qwen-companion-changes-test-turn
      "one" (list (list "a.txt" (qwen-companion-changes-test--new
                                 5 "five" 20 "twenty" 35 nil))))
     (qwen-companion-changes-test-open)
     (qwen-companion-changes-test-unfold "a.txt")
     ,@body))

(ert-deftest qwen-companion-changes-test-shows-turns-files-and-hunks ()
  (qwen-companion-changes-test--with-hunks
    (qwen-companion-changes-test-turn
     "two" '(("b/new.txt" "x\n") ("a.txt" nil))
     :usage '((:model "small" :input 1999600 :output 5 :cached 0)))
    (qwen-companion-changes-test-settle)
    (let ((text (qwen-companion-changes-test-text)))
      (should (string-search "Prompt of two  small 2M in, 5 out\n" text))
      (should (string-match-p "Prompt of two\\(.\\|\n\\)*Prompt of one" text))
      (should (string-match-p "\\+2 -3 +1 file +Qwen Code +Prompt of one" text))
      (should (string-search "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n" text)))
    ;; The newer one is folded: only the newest at the opening is not.
    (should-not (string-search "new.txt" (qwen-companion-changes-test-text)))
    (qwen-companion-changes-test-press-at "Prompt of two" "TAB")
    (should (string-match-p "b/new.txt  new" (qwen-companion-changes-test-text)))
    (should (string-match-p "a.txt  deleted" (qwen-companion-changes-test-text)))
    (qwen-companion-test-press "TAB")
    (should-not (string-search "new.txt" (qwen-companion-changes-test-text)))))

(ert-deftest qwen-companion-changes-test-shows-first-what-was-written-unreviewed ()
  (qwen-companion-changes-test-with ()
    (qwen-companion-changes-test-turn
     "one" '(("a.txt" "a\n") ("b.txt" "b\n" :by (("unreviewed" nil)))))
    (qwen-companion-changes-test-turn "two" '(("c.txt" "c\n")))
    (qwen-companion-changes-test-open)
    (let ((text (qwen-companion-changes-test-text)))
      (should (string-match-p "written unreviewed  Prompt of one\\(.\\|\n\\)*Prompt of two" text))
      (should (string-match-p "b\\.txt  .*  written unreviewed\n.*a\\.txt" text))
      (should-not (string-match-p "unreviewed.*Prompt of two" text)))))

(ert-deftest qwen-companion-changes-test-says-what-is-not-recorded ()
  "As long as it is so, above the turns and in the help of the mode line."
  (qwen-companion-changes-test--with-hunks
    (let ((root (directory-file-name default-directory))
          (help (lambda () (qwen-companion--lighter-help nil nil nil))))
      (qwen-companion-journal-on-unrecorded `(:reasons ((,root "a pipe is there"))))
      (qwen-companion-changes-test-settle)
      (let ((line (format "Changes in %s are not recorded: a pipe is there\n" root)))
        (should (string-prefix-p line (qwen-companion-changes-test-text)))
        (should (string-search "Prompt of one" (qwen-companion-changes-test-text)))
        (should (string-search line (funcall help))))
      (qwen-companion-journal-on-unrecorded '(:reasons nil))
      (qwen-companion-changes-test-settle)
      (should-not (string-search "not recorded" (qwen-companion-changes-test-text)))
      (should-not (string-search "not recorded" (funcall help))))))

(ert-deftest qwen-companion-changes-test-prunes-the-oldest-turns ()
  "Each has its size, and the question names all that is lost."
  (qwen-companion-changes-test--with-hunks
    (let ((root (directory-file-name default-directory))
          asked offered)
      (qwen-companion-changes-test-turn "two" '(("b.txt" "x\n")))
      (qwen-companion-changes-test-turn "three" '(("b.txt" nil)))
      (qwen-companion-journal-on-unrecorded `(:crowded ((,root 734003200))))
      (qwen-companion-changes-test-settle)
      (should (string-search (format "The turns of %s need 700 MiB; M-x qwen-companion-journal-prune forgets" root)
                             (qwen-companion-changes-test-text)))
      (cl-letf (((symbol-function 'completing-read)
                 (lambda (_prompt table &rest _)
                   (let ((annotate (cdr (assq 'annotation-function (cdr (funcall table "" nil 'metadata))))))
                     (setq offered (mapcar (lambda (name) (concat name (funcall annotate name)))
                                           (all-completions "" table)))
                     (nth 1 (all-completions "" table)))))
                ((symbol-function 'yes-or-no-p)
                 (lambda (prompt) (push prompt asked) (cdr asked))))
        (qwen-companion-journal-prune)
        (should (length= qwen-companion-changes-test-turns 3))
        (qwen-companion-journal-prune))
      (should (string-match-p "\\`2: [-0-9]+ [0-9:]+ Prompt of two +2 KiB, all up to it 4 KiB\\'" (nth 1 offered)))
      (should (equal (car asked)
                     "Forget the 2 oldest turns (4 KiB)? They cannot be undone then, and no copy is kept of b.txt. "))
      (should (equal '("three") (mapcar (lambda (turn) (plist-get turn :id))
                                        qwen-companion-changes-test-turns))))))

(ert-deftest qwen-companion-changes-test-says-what-an-undo-has-the-journal-keep ()
  (qwen-companion-changes-test--with-hunks
    (let ((qwen-companion-changes-undo--report-size-from 1) question)
      (qwen-companion-test-answering (lambda (prompt) (setq question prompt) nil)
        (should (eq 'quit (condition-case nil
                              (qwen-companion-changes-test-press-at "Prompt of one" "k")
                            (quit 'quit)))))
      (should (string-match-p "; the journal keeps [0-9]+ B of it, until M-x qwen-companion-journal-prune or for two weeks"
                              question)))))

(ert-deftest qwen-companion-changes-test-undoes-a-hunk-and-brings-it-back ()
  (qwen-companion-changes-test--with-hunks
    (let ((after (qwen-companion-changes-test-bytes "a.txt")))
      (qwen-companion-test-press "n" "k")
      (qwen-companion-changes-test--holds 5 "five" 35 nil)
      (should (looking-at "@@ -17,7 \\+17,7 @@ undone, u brings it back\n"))
      (pcase-let ((`(,wrote) (qwen-companion-test-sent 'journal-wrote)))
        (should (equal (list (expand-file-name "a.txt")) (plist-get wrote :paths)))
        (should (equal "one" (plist-get wrote :turn)))
        (should (equal "Undo 1 change of a.txt" (plist-get wrote :label))))
      (should-error (qwen-companion-test-press "k") :type 'user-error)
      ;; Also after it was told of the undo, and looked at the file again.
      (qwen-companion-changes-test-settle)
      (should (looking-at "@@ -17,7 \\+17,7 @@ undone, u brings it back\n"))
      (qwen-companion-test-press "u")
      (should (equal after (qwen-companion-changes-test-bytes "a.txt")))
      (should (looking-at "@@ -17,7 \\+17,7 @@\n"))
      (should-error (qwen-companion-test-press "u") :type 'user-error))))

(ert-deftest qwen-companion-changes-test-knows-what-is-undone-with-two-line-ends ()
  "Where the agent has added a line with another end than the others have."
  (qwen-companion-changes-test-with nil
    (qwen-companion-changes-test-write (expand-file-name "a.txt") "one\r\ntwo\r\n")
    (qwen-companion-changes-test-turn "one" '(("a.txt" "one\r\ntwo\r\nmore\n")))
    (qwen-companion-changes-test-open)
    (qwen-companion-changes-test-press-at "a.txt" "TAB" "n" "k")
    (should (equal "one\r\ntwo\r\n" (qwen-companion-changes-test-bytes "a.txt")))
    ;; After it has looked at the file again.
    (with-current-buffer qwen-companion-changes-items-buffer-name
      (dolist (view (hash-table-values qwen-companion-changes-items-views))
        (qwen-companion-changes-file-load view #'ignore)))
    (qwen-companion-changes-test-settle)
    (should (looking-at "@@ .* undone, u brings it back\n"))
    (qwen-companion-test-press "u")
    (should (equal "one\r\ntwo\r\nmore\n" (qwen-companion-changes-test-bytes "a.txt")))))

(ert-deftest qwen-companion-changes-test-undoes-in-a-visiting-buffer ()
  "The buffer changes in one undo step, and is saved if it was."
  (qwen-companion-changes-test--with-hunks
    (let ((buffer (find-file-noselect "a.txt")))
      (with-current-buffer buffer (qwen-companion-test-go-to "twenty"))
      (qwen-companion-test-press "k")
      (should-not (buffer-modified-p buffer))
      (qwen-companion-changes-test--holds 20 "twenty" 35 nil)
      (with-current-buffer buffer
        (should (equal (qwen-companion-changes-test--new 20 "twenty" 35 nil) (buffer-string)))
        (should (looking-back "twenty" 1))
        (undo-boundary)
        (primitive-undo 1 (progn (while (null (car buffer-undo-list))
                                   (pop buffer-undo-list))
                                 buffer-undo-list))
        (should (equal (qwen-companion-changes-test--new 5 "five" 20 "twenty" 35 nil)
                       (buffer-string)))))))

(ert-deftest qwen-companion-changes-test-leaves-unsaved-text-unsaved ()
  (qwen-companion-changes-test--with-hunks
    (let ((buffer (find-file-noselect "a.txt"))
          (disk (qwen-companion-changes-test-bytes "a.txt")))
      (with-current-buffer buffer
        (goto-char (point-min))
        (insert "mine\n"))
      (qwen-companion-test-said "not saved" (qwen-companion-test-press "k"))
      (should (equal disk (qwen-companion-changes-test-bytes "a.txt")))
      (with-current-buffer buffer
        (should (buffer-modified-p))
        (should (equal (concat "mine\n" (qwen-companion-changes-test--new 20 "twenty" 35 nil))
                       (buffer-string)))))))

(ert-deftest qwen-companion-changes-test-keeps-later-edits ()
  (qwen-companion-changes-test--with-hunks
    (qwen-companion-changes-test-write
     "a.txt" (qwen-companion-changes-test--new 1 "later" 5 "five" 20 "twenty" 35 nil 40 "end"))
    (qwen-companion-test-press "k")
    (qwen-companion-changes-test--holds 1 "later" 20 "twenty" 35 nil 40 "end")))

(ert-deftest qwen-companion-changes-test-file-changed-unnoticed ()
  "A buffer that nobody has synchronised is reverted; unsaved text is left alone."
  (qwen-companion-changes-test--with-hunks
    (let ((buffer (find-file-noselect "a.txt"))
          (text (qwen-companion-changes-test--new 5 "five" 20 "twenty" 35 nil 40 "end")))
      (qwen-companion-changes-test-write "a.txt" text)
      (set-file-times "a.txt" (time-add nil 10))
      (qwen-companion-test-press "k")
      (qwen-companion-changes-test--holds 20 "twenty" 35 nil 40 "end")
      (should-not (buffer-modified-p buffer))
      (with-current-buffer buffer (insert "mine"))
      (qwen-companion-changes-test-write "a.txt" text)
      (set-file-times "a.txt" (time-add nil 20))
      (qwen-companion-changes-test-goto "@@ -17")
      (qwen-companion-test-refused "unsaved text, and its file has changed"
        (qwen-companion-test-press "k"))
      (should (equal text (qwen-companion-changes-test-bytes "a.txt"))))))

(ert-deftest qwen-companion-changes-test-says-what-is-undone ()
  "A part of a turn, and nothing once that is brought back."
  (qwen-companion-changes-test--with-hunks
    (qwen-companion-test-press "k")
    (qwen-companion-changes-test-shows "partly undone  Prompt of one")
    (qwen-companion-test-press "u")
    (qwen-companion-changes-test-settle)
    (should-not (string-search "undone  Prompt" (qwen-companion-changes-test-text)))
    (should (equal '(("one" undo) ("one" bring-back))
                   (mapcar (lambda (wrote) (list (plist-get wrote :turn) (plist-get wrote :action)))
                           (qwen-companion-test-sent 'journal-wrote))))
    ;; Also where more than a turn is shown.
    (qwen-companion-changes-show-unseen)
    (qwen-companion-changes-test-unfold "a.txt")
    (qwen-companion-test-press "k")
    (should (equal "one" (plist-get (car (last (qwen-companion-test-sent 'journal-wrote)))
                                    :turn)))))

(ert-deftest qwen-companion-changes-test-conflict-writes-nothing ()
  (qwen-companion-changes-test--with-hunks
    (let ((text (qwen-companion-changes-test--new 5 "mine" 20 "twenty" 35 nil)))
      (qwen-companion-changes-test-write "a.txt" text)
      (qwen-companion-test-said "1 conflict.*not written" (qwen-companion-test-press "k"))
      (should (equal text (qwen-companion-changes-test-bytes "a.txt")))
      (should-not (qwen-companion-test-sent 'journal-wrote))
      (with-current-buffer (find-buffer-visiting "a.txt")
        (should (buffer-modified-p))
        (should (string-search "<<<<<<< yours\nmine\n||||||| before\nfive\n=======\n5\n>>>>>>> undone\n"
                               (buffer-string)))
        (should (qwen-companion-conflicts-p))
        (qwen-companion-test-refused "1 unresolved conflict with an undo" (basic-save-buffer))))))

(ert-deftest qwen-companion-changes-test-merges-from-a-worktree ()
  "Hunks and turns are merged beside other edits; undone hunks are left out."
  (cl-flet ((lines (first fifth last)
              (concat first "\n2\n3\n4\n" fifth "\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n"
                      last "\n")))
    (qwen-companion-changes-test-with
        `(("a.txt" ,(lines "mine" "5" "17")) ("gone.txt" "x\n") ("old.txt" "old\n")
          ("tree/a.txt" ,(lines "1" "5" "17")) ("tree/gone.txt" "x\n") ("tree/old.txt" "old\n"))
      (let ((default-directory (expand-file-name "tree/")))
        (qwen-companion-changes-test-turn
         "one" `(("a.txt" ,(lines "1" "FIVE" "END")) ("gone.txt" nil)
                 ("new/b.txt" "b\n") ("moved.txt" "old\n" :from "old.txt"))))
      (qwen-companion-test-answering t
        (qwen-companion-changes-test-open)
        (qwen-companion-changes-test-press-at "a.txt" "TAB")
        (qwen-companion-changes-test-press-at "+END" "m")
        (let ((merged (lines "mine" "5" "END")))
          (should (equal merged (qwen-companion-changes-test-bytes "a.txt")))
          (should (equal '(merge "one") (let ((sent (alist-get 'journal-wrote qwen-companion-test-calls)))
                                          (list (plist-get sent :action) (plist-get sent :turn)))))
          (qwen-companion-changes-test-press-at "+FIVE" "k")
          (should-error (qwen-companion-test-press "m") :type 'user-error)
          (qwen-companion-changes-test-press-at "partly undone  Prompt of one" "m")
          (should (equal merged (qwen-companion-changes-test-bytes "a.txt"))))
        (should (equal '(nil "b\n" nil "old\n")
                       (mapcar #'qwen-companion-changes-test-bytes
                               '("gone.txt" "new/b.txt" "old.txt" "moved.txt"))))))))

(ert-deftest qwen-companion-changes-test-keys-of-a-difference ()
  "The keys that work are shown: a difference is merged, not undone."
  (qwen-companion-changes-test--with-hunks
    (let ((shown (lambda ()
                   (mapcar (lambda (key) (and (string-search key (qwen-companion-test-header)) key))
                           '("m merge" "k undo" "u bring back" "s seen")))))
      (set-frame-size (selected-frame) 200 40)
      (should (equal '(nil "k undo" "u bring back" "s seen") (funcall shown)))
      (setq qwen-companion-changes-items-scope 'merge
            qwen-companion-changes-items-root default-directory)
      (should (equal '("m merge" nil nil nil) (funcall shown))))))

(ert-deftest qwen-companion-changes-test-a-worktree-that-is-removed ()
  "Its turns can be merged into the main tree or a new worktree, and nothing else."
  (qwen-companion-changes-test-with '(("a.txt" "1\n2\n") ("tree/a.txt" "1\n2\n")
                                      (".gitignore" "tree\n"))
    (let ((default-directory (expand-file-name "tree/")))
      (qwen-companion-changes-test-turn "one" '(("a.txt" "1\nX\n") ("new.txt" "new\n"))))
    (delete-directory "tree" t)
    (qwen-companion-changes-test-open)
    (dolist (key '("k" "u"))
      (qwen-companion-changes-test-goto "Prompt of one")
      (qwen-companion-test-refused "is removed; m merges" (qwen-companion-test-press key))
      (should-not (file-exists-p "tree")))
    (dolist (command '("init --quiet" "add ." "-c user.name=U -c user.email=u@x commit --quiet -m x"))
      (apply #'call-process "git" nil nil nil (split-string command)))
    (let (question (choice ?w))
      (cl-letf (((symbol-function 'read-char-choice) (lambda (&rest _) choice))
                ((symbol-function 'read-string) (lambda (&rest _) "other")))
        (qwen-companion-test-answering (lambda (text) (setq question text) t)
          (qwen-companion-changes-test-press-at "Prompt of one" "m")
          (should (equal '("1\n2\n" nil "1\nX\n" "new\n")
                         (mapcar #'qwen-companion-changes-test-bytes
                                 '("a.txt" "new.txt" ".qwen/worktrees/other/a.txt"
                                   ".qwen/worktrees/other/new.txt"))))
          (setq choice ?m)
          (qwen-companion-changes-test-press-at "Prompt of one" "m")))
      (should (string-match-p "\\`Merge \"Prompt of one\" into .*: change a.txt, make new.txt\\? "
                              question)))
    (should (equal '("1\nX\n" "new\n")
                   (mapcar #'qwen-companion-changes-test-bytes '("a.txt" "new.txt"))))))

(ert-deftest qwen-companion-changes-test-renames-back-with-unsaved-text ()
  "Conflicts are shown under the old name; unsaved text needs it free."
  (qwen-companion-changes-test-with '(("a.txt" "one\ntwo\n"))
    (qwen-companion-changes-test-turn "one" '(("b.txt" "ONE\ntwo\n" :from "a.txt")))
    (qwen-companion-changes-test-write "b.txt" "mine\ntwo\n")
    (qwen-companion-changes-test-open)
    (qwen-companion-changes-test-goto "b.txt")
    (qwen-companion-test-said "1 conflict.* until you resolve it: a\\.txt$"
      (qwen-companion-test-press "k"))
    (let ((buffer (find-buffer-visiting "a.txt")))
      (should (get-buffer-window buffer))
      (with-current-buffer buffer
        (should (string-search "<<<<<<< yours\nmine\n" (buffer-string)))
        (set-buffer-modified-p nil)
        (kill-buffer)))
    (rename-file "a.txt" "b.txt")
    (qwen-companion-changes-test-write "a.txt" "old\n")
    (let ((old (find-file-noselect "a.txt"))
          (new (find-file-noselect "b.txt")))
      (delete-file "a.txt")
      (with-current-buffer new (insert "unsaved\n"))
      (qwen-companion-test-refused "b.txt has unsaved text" (qwen-companion-test-press "k"))
      (with-current-buffer new
        (should (file-exists-p buffer-file-name))
        (set-buffer-modified-p nil))
      (mapc #'kill-buffer (list old new)))))

(ert-deftest qwen-companion-changes-test-undoes-the-lines-of-the-region ()
  (qwen-companion-changes-test-with-turn '(("a.txt" "a\nb\nc\nd\n")) '(("a.txt" "a\nB\nX\nY\nC\nd\n"))
    (qwen-companion-changes-test-unfold "a.txt")
    (let ((transient-mark-mode t))
      (qwen-companion-changes-test-goto "+X")
      (set-mark (point))
      (forward-line 2)
      (activate-mark)
      (qwen-companion-test-press "k"))
    (should (equal "a\nB\nC\nd\n" (qwen-companion-changes-test-bytes "a.txt")))
    (qwen-companion-changes-test-settle)
    (qwen-companion-changes-test-press-at "undone, u brings it back" "u")
    (should (equal "a\nB\nX\nY\nC\nd\n" (qwen-companion-changes-test-bytes "a.txt")))))

(ert-deftest qwen-companion-changes-test-undoes-a-file-byte-for-byte ()
  "Line ends, byte order mark, encoding and a missing last newline stay."
  (dolist (bytes '("a\r\nb\r\nc\r\n" "\xef\xbb\xbf\x61\nb\nc" "\xe4\nb\nc\n"
                   "\xff\xfe\x61\x00\n\x00\x62\x00\n\x00" "a\nb\r\nc\0d"))
    (qwen-companion-changes-test-with nil
      (let ((bytes (string-to-unibyte bytes))
            (path (expand-file-name "a.bin")))
        (qwen-companion-changes-test-write path bytes)
        (qwen-companion-changes-test-turn "one" '(("a.bin" "x\nB\n")))
        (qwen-companion-changes-test-open)
        (qwen-companion-changes-test-press-at "a.bin" "k")
        (should (equal bytes (qwen-companion-changes-test-bytes path)))
        (qwen-companion-test-press "u")
        (should (equal "x\nB\n" (qwen-companion-changes-test-bytes path)))))))

(defconst qwen-companion-changes-test--forms
  '(("utf-8" utf-8-unix) ("cr lf" utf-8-dos) ("cr" utf-8-mac) ("bom" utf-8-with-signature-unix)
    ("bom and cr lf" utf-8-with-signature-dos) ("utf-16" utf-16le-with-signature-unix)
    ("utf-16 and cr lf" utf-16be-with-signature-dos) ("latin-1" iso-latin-1-unix))
  "Names of forms of a text, and the coding system of each.")

(defun qwen-companion-changes-test--in-form (form text)
  "Return the bytes of TEXT in FORM."
  (encode-coding-string text (cadr (assoc form qwen-companion-changes-test--forms)) t))

(defun qwen-companion-changes-test--change-form (old new function)
  "Call FUNCTION where a visited file in the form OLD has become one in NEW.
It gets the buffer, and the bytes before and after that."
  (qwen-companion-changes-test-with nil
    (let ((before (qwen-companion-changes-test--in-form old "für\n2\n3\n4\n5\n"))
          (after (qwen-companion-changes-test--in-form new "für\n2\n3\n4\nV\n")))
      (qwen-companion-changes-test-write "a.txt" after)
      (qwen-companion-changes-test-turn "one" nil)
      (qwen-companion-changes-test-told 0 `(("a.txt" ,before ,after)))
      (let ((buffer (find-file-noselect "a.txt")))
        (qwen-companion-changes-test-open)
        (qwen-companion-changes-test-goto "a.txt")
        (funcall function buffer before after)))))

(ert-deftest qwen-companion-changes-test-undoes-other-forms-of-a-visited-text ()
  "Encoding, mark and line ends are of each side, and no hook of the user's runs."
  (let ((before-save-hook (list (lambda () (ert-fail "Ran a hook of the user's"))))
        (forms (mapcar #'car qwen-companion-changes-test--forms)))
    (dolist (old forms)
      (dolist (new forms)
        (unless (member "cr" (list old new))
          (ert-info ((format "%s to %s" old new))
            (qwen-companion-changes-test--change-form
             old new
             (lambda (buffer before after)
               (qwen-companion-test-press "k")
               (should (equal before (qwen-companion-changes-test-bytes "a.txt")))
               (with-current-buffer buffer
                 (should-not (buffer-modified-p))
                 (should (equal "für\n2\n3\n4\n5\n" (buffer-string))))
               (qwen-companion-test-press "u")
               (should (equal after (qwen-companion-changes-test-bytes "a.txt")))))
            ;; With unsaved text: as it is saved.
            (qwen-companion-changes-test--change-form
             old new
             (lambda (buffer _before after)
               (with-current-buffer buffer
                 (goto-char (point-min))
                 (forward-line 1)
                 (insert "mine\n"))
               (qwen-companion-test-press "k")
               (should (equal after (qwen-companion-changes-test-bytes "a.txt")))
               (with-current-buffer buffer
                 (should (buffer-modified-p))
                 (should (equal "für\nmine\n2\n3\n4\n5\n" (buffer-string)))
                 (let ((before-save-hook nil))
                   (save-buffer)))
               (should (equal (qwen-companion-changes-test--in-form
                               old "für\nmine\n2\n3\n4\n5\n")
                              (qwen-companion-changes-test-bytes "a.txt")))))))))))

(ert-deftest qwen-companion-changes-test-a-mark-goes-from-unsaved-text ()
  "Nothing else tells the encoding where all is ASCII."
  (dolist (mark '("\xef\xbb\xbf" "\xff\xfe"))
    (qwen-companion-changes-test-with nil
      (let* ((text "a\r\nb\r\n")
             (after (encode-coding-string text (if (= 3 (length mark))
                                                   'utf-8-with-signature-unix
                                                 'utf-16le-with-signature-unix)
                                          t)))
        (qwen-companion-changes-test-write "a.txt" after)
        (qwen-companion-changes-test-turn "one" nil)
        (qwen-companion-changes-test-told 0 `(("a.txt" ,text ,after)))
        (with-current-buffer (find-file-noselect "a.txt")
          (insert "mine\n")
          (qwen-companion-changes-test-open)
          (qwen-companion-changes-test-press-at "a.txt" "k"))
        (with-current-buffer (find-file-noselect "a.txt")
          (should (buffer-modified-p))
          (save-buffer))
        (should (equal (concat "mine\r\n" text)
                       (qwen-companion-changes-test-bytes "a.txt")))))))

(ert-deftest qwen-companion-changes-test-line-ends-alone ()
  "A change of line ends alone is undone too, in the buffer and beside unsaved text."
  (dolist (unsaved '(nil t))
    (qwen-companion-changes-test-with nil
      (qwen-companion-changes-test-write "a.txt" "a\r\nb\r\n")
      (qwen-companion-changes-test-turn "one" nil)
      (qwen-companion-changes-test-told 0 `(("a.txt" "a\nb\n" "a\r\nb\r\n")))
      (with-current-buffer (find-file-noselect "a.txt")
        (when unsaved
          (insert "mine\n"))
        (qwen-companion-changes-test-open)
        (qwen-companion-changes-test-press-at "a.txt" "k"))
      (when unsaved
        (with-current-buffer (find-file-noselect "a.txt")
          (should (buffer-modified-p))
          (save-buffer)))
      (should (equal (if unsaved "mine\na\nb\n" "a\nb\n")
                     (qwen-companion-changes-test-bytes "a.txt"))))))

(ert-deftest qwen-companion-changes-test-line-ends-of-the-user ()
  "Where the user has given all lines another end since, the change is still undone."
  (dolist (visited '(nil t))
    (let ((before-save-hook (list (lambda () (ert-fail "Ran a hook of the user's")))))
      (qwen-companion-changes-test-with '(("a.txt" "1\n2\n3\n"))
        (qwen-companion-changes-test-turn "one" '(("a.txt" "1\nX\n3\n")))
        (qwen-companion-changes-test-write "a.txt" "1\r\nX\r\n3\r\n4\r\n")
        (when visited
          (find-file-noselect "a.txt"))
        (qwen-companion-changes-test-open)
        (qwen-companion-changes-test-press-at "a.txt" "k")
        (should (equal "1\r\n2\r\n3\r\n4\r\n" (qwen-companion-changes-test-bytes "a.txt")))
        (should-not (buffer-modified-p (find-file-noselect "a.txt")))))))

(ert-deftest qwen-companion-changes-test-a-formatter-writes-nothing-in-an-undo ()
  "Where the buffer has no unsaved text, the undo changes nothing else in the file."
  (qwen-companion-changes-test-with '(("a.txt" "1\n2\n3\n4\n5  \n"))
    (qwen-companion-changes-test-turn "one" '(("a.txt" "X\n2\n3\n4\n5  \n")))
    (qwen-companion-changes-test-write "a.txt" "X\n2\n3\nfour  \n5  \n")
    (with-current-buffer (find-file-noselect "a.txt")
      (add-hook 'before-save-hook #'delete-trailing-whitespace nil t)
      (setq-local write-contents-functions (list #'delete-trailing-whitespace)))
    (qwen-companion-changes-test-open)
    (qwen-companion-changes-test-press-at "a.txt" "k")
    (should (equal "1\n2\n3\nfour  \n5  \n" (qwen-companion-changes-test-bytes "a.txt")))
    (with-current-buffer (find-file-noselect "a.txt")
      (should-not (buffer-modified-p))
      (should (equal "1\n2\n3\nfour  \n5  \n" (buffer-string))))))

(ert-deftest qwen-companion-changes-test-merges-bytes ()
  "A file with CR LF in Latin-1 that nobody visits keeps them in a merge."
  (qwen-companion-changes-test-with nil
    (let ((path (expand-file-name "a.txt"))
          (lines (lambda (&rest texts)
                   (string-to-unibyte (mapconcat (lambda (text) (concat text "\r\n")) texts "")))))
      (qwen-companion-changes-test-write path (funcall lines "\xf6" "b" "c" "d" "e" "F"))
      (qwen-companion-changes-test-turn "one" nil)
      (qwen-companion-changes-test-told 0 `((,path ,(funcall lines "\xe4" "b" "c" "d" "e" "f")
                                                   ,(funcall lines "\xe4" "b" "c" "d" "e" "F"))))
      (qwen-companion-changes-test-open)
      (qwen-companion-changes-test-press-at "a.txt" "k")
      (should (equal (funcall lines "\xf6" "b" "c" "d" "e" "f")
                     (qwen-companion-changes-test-bytes path))))))

(ert-deftest qwen-companion-changes-test-undoes-a-turn ()
  "Made, deleted and renamed files are put back, after one question that says so."
  (qwen-companion-changes-test-with-turn '(("edited" "1\n2\n3\n") ("gone" "g\n") ("old" "o\n")) '(("edited" "1\nX\n3\n") ("made" "m\n") ("gone" nil) ("new" "o\n" :from "old"))
    (qwen-companion-changes-test-goto "Prompt of one")
    (let (questions)
      (qwen-companion-test-answering (lambda (question) (push question questions) t)
        (qwen-companion-test-press "k")
        (should (equal '("Undo \"Prompt of one\": change back edited (line 2), delete made, make again gone, rename back new? ")
                       questions))
        (should (equal '("1\n2\n3\n" nil "g\n" "o\n" nil)
                       (mapcar #'qwen-companion-changes-test-bytes
                               '("edited" "made" "gone" "old" "new"))))
        (qwen-companion-changes-test-settle)
        (should (string-match-p "Qwen Code +undone  Prompt of one"
                                (qwen-companion-changes-test-text)))
        (setq questions nil)
        (qwen-companion-test-refused "Already undone" (qwen-companion-test-press "k"))
        ;; What cannot be done is not asked about.
        (should-not questions)
        (should (equal '("1\n2\n3\n" nil "g\n" "o\n" nil)
                       (mapcar #'qwen-companion-changes-test-bytes
                               '("edited" "made" "gone" "old" "new"))))
        ;; It is a turn of its own, which can be undone.
        (qwen-companion-changes-test-settle)
        (qwen-companion-changes-test-goto "Undo \"Prompt of one\"")
        (should (string-match-p "you  Undo" (buffer-substring (point) (line-end-position))))
        (qwen-companion-test-refused "Not undone" (qwen-companion-test-press "u"))
        (should-not questions)
        (qwen-companion-test-press "k")
        (should (= 1 (length questions)))
        (qwen-companion-changes-test-settle)
        (should-not (string-match-p "Qwen Code +\\(partly \\)?undone"
                                    (qwen-companion-changes-test-text)))
        (should (equal '("1\nX\n3\n" "m\n" nil nil "o\n")
                       (mapcar #'qwen-companion-changes-test-bytes
                               '("edited" "made" "gone" "old" "new"))))))))

(ert-deftest qwen-companion-changes-test-names-the-lines-that-are-written ()
  "The question before an undo has their numbers in the current text, of many the first."
  (cl-flet ((text (&rest lines) (mapconcat (lambda (line) (format "%s\n" line)) lines "")))
    (let ((twenty (apply #'text (number-sequence 1 20)))
          (questions nil))
      (qwen-companion-changes-test-with-turn `(("a" ,twenty) ("b" ,twenty))
          `(("a" ,(text 1 "X" "Y" 3 4 6 7 8 9 10 "Z" 12 13 "Z" 15 16 "Z" 18 19 "Z"))
            ("b" ,(text 1 2 3 4 5 6 7 8 10 11 12 13 14 15 16 17 18 19 20)))
        ;; What the user adds moves what is below it.
        (qwen-companion-changes-test-write
         "b" (text "mine" 1 2 3 4 5 6 7 8 10 11 12 13 14 15 16 17 18 19 20))
        (qwen-companion-changes-items-reload t)
        (qwen-companion-changes-test-settle)
        (qwen-companion-changes-test-goto "Prompt of one")
        (qwen-companion-test-answering (lambda (question) (push question questions) t)
          (qwen-companion-test-press "k")
          (qwen-companion-changes-test-settle)
          (qwen-companion-changes-test-goto "undone  Prompt of one")
          (qwen-companion-test-press "u"))
        (should (equal '("Bring back \"Prompt of one\": change again a (lines 2, 5, 11, 14 and 2 more places) and b (line 10)? "
                         "Undo \"Prompt of one\": change back a (lines 2-3, 5, 11, 14 and 2 more places) and b (line 9)? ")
                       questions))))))

(ert-deftest qwen-companion-changes-test-names-what-is-more-than-text ()
  "Files that are deleted, made or renamed, modes and links; of very many the first."
  (cl-flet ((file (name kind &rest more)
              (append more (list :path (concat "/p/" name) :kind kind))))
    (should (equal "change back 2 files, change back the link l, change back the mode of b and run, delete new, make again x, y and z"
                   (qwen-companion-changes-undo-words
                    (list (file "a" 'modified) (file "b" 'modified :mode t)
                          (file "l" 'modified :link t) (file "run" 'mode :mode t)
                          (file "new" 'added) (file "x" 'deleted) (file "y" 'deleted)
                          (file "z" 'deleted))
                    'undo)))
    (should (equal "delete old, make 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more"
                   (qwen-companion-changes-undo-words
                    (cons (file "old" 'deleted)
                          (mapcar (lambda (number) (file (number-to-string number) 'added))
                                  (number-sequence 1 12)))
                    'merge)))))

(ert-deftest qwen-companion-changes-test-undoes-one-turn-of-several ()
  "The turns before and after it and the user's edits stay."
  (qwen-companion-changes-test-with (list (list "a.txt" qwen-companion-changes-test--old))
    (let ((new #'qwen-companion-changes-test--new))
      (qwen-companion-changes-test-turn
       "one" (list (list "a.txt" (funcall new 3 "first")) '("of-one" "1\n")))
      (qwen-companion-changes-test-turn
       "two" (list (list "a.txt" (funcall new 3 "first" 15 "second")) '("of-two" "2\n")))
      (qwen-companion-changes-test-turn
       "three" (list (list "a.txt" (funcall new 3 "first" 15 "second" 25 "third"))))
      ;; Saved, and in a buffer.
      (qwen-companion-changes-test-write
       "a.txt" (funcall new 3 "first" 15 "second" 25 "third" 32 "saved by the user"))
      (qwen-companion-test-append "not saved\n" (find-file-noselect "a.txt"))
      (qwen-companion-changes-test-open)
      (qwen-companion-changes-test-goto "Prompt of two")
      (qwen-companion-test-answering t
        (qwen-companion-test-press "k"))
      (should (equal (concat (funcall new 3 "first" 25 "third" 32 "saved by the user")
                             "not saved\n")
                     (qwen-companion-test-buffer-text (find-buffer-visiting "a.txt"))))
      (should (buffer-modified-p (find-buffer-visiting "a.txt")))
      (should (equal '("1\n" nil)
                     (mapcar #'qwen-companion-changes-test-bytes '("of-one" "of-two")))))))

(ert-deftest qwen-companion-changes-test-saying-no-changes-nothing ()
  (qwen-companion-changes-test-with-turn nil '(("made" "m\n"))
    (dolist (place '("made" "Prompt of one"))
      (qwen-companion-changes-test-goto place)
      (qwen-companion-test-answering nil
        (should (qwen-companion-test-quits-p "k")))
      (should (file-exists-p "made")))))

(ert-deftest qwen-companion-changes-test-its-text-names-the-keys-of-the-user ()
  (let ((qwen-companion-changes-mode-map (copy-keymap qwen-companion-changes-mode-map)))
    (define-key qwen-companion-changes-mode-map (kbd "v a") nil)
    (define-key qwen-companion-changes-mode-map "Z" #'qwen-companion-changes-toggle-seen)
    (define-key qwen-companion-changes-mode-map "c" nil)
    (define-key qwen-companion-changes-mode-map "Y" #'qwen-companion-changes-comment)
    (qwen-companion-changes-test--with-hunks
      (qwen-companion-test-refused "No comments to send; Y comments on the line at point"
        (qwen-companion-changes-send-comments))
      (qwen-companion-test-press "s" "g")
      (qwen-companion-changes-test-settle)
      (should (string-search "1 hunk seen: Z shows it" (qwen-companion-changes-test-text)))
      (qwen-companion-changes-test-press-at "a.txt" "s")
      (qwen-companion-changes-test-open)
      (should (string-search "All changes have been seen; Z shows them."
                             (qwen-companion-changes-test-text))))))

(ert-deftest qwen-companion-changes-test-shows-only-the-unseen-next-time ()
  (qwen-companion-changes-test--with-hunks
    (qwen-companion-test-press "s")
    (should (looking-at "@@ -17,7 "))
    (qwen-companion-changes-test-settle)
    ;; It stays until the next time.
    (should (string-search "@@ -2,7 +2,7 @@ seen\n" (qwen-companion-changes-test-text)))
    (qwen-companion-test-press "g")
    (qwen-companion-changes-test-settle)
    (should-not (string-search "@@ -2,7" (qwen-companion-changes-test-text)))
    (should (string-search "1 hunk seen: v a shows it" (qwen-companion-changes-test-text)))
    (qwen-companion-changes-test-press-at "a.txt" "s")
    (qwen-companion-changes-test-settle)
    (should (string-match-p "a.txt .* seen" (qwen-companion-changes-test-text)))
    (qwen-companion-changes-test-open)
    (should (string-search "All changes have been seen; v a shows them."
                           (qwen-companion-changes-test-text)))
    (qwen-companion-changes-toggle-seen)
    (qwen-companion-changes-test-goto "a.txt")
    (let ((current-prefix-arg '(4)))
      (qwen-companion-test-press "s"))
    (qwen-companion-changes-toggle-seen)
    (should (string-search "a.txt" (qwen-companion-changes-test-text)))))

(ert-deftest qwen-companion-changes-test-shows-a-note-without-files-once ()
  (qwen-companion-changes-test--with-hunks
    (let ((shown (lambda () (string-search "Prompt of noted" (qwen-companion-changes-test-text)))))
      (qwen-companion-changes-test-turn "noted" nil :notes '("2 commits in .hg") :end 2000)
      (qwen-companion-changes-test-settle)
      (should (funcall shown))
      (qwen-companion-test-press "g")
      (qwen-companion-changes-test-settle)
      (should-not (funcall shown))
      (qwen-companion-changes-toggle-seen)
      (qwen-companion-changes-test-settle)
      (should (funcall shown)))))

(ert-deftest qwen-companion-changes-test-marks-hunk-file-and-turn-by-key ()
  "In a list of several turns, each mark goes where point is and no further."
  (qwen-companion-changes-test--with-hunks
    (qwen-companion-changes-test-turn "two" '(("b.txt" "b\n") ("c.txt" "c\n")))
    (qwen-companion-changes-test-settle)
    (cl-flet ((lines-seen ()
                (cl-loop for line in (split-string (qwen-companion-changes-test-text) "\n")
                         when (string-match "\\(@@ -[0-9]+\\|[abc]\\.txt\\|Prompt of [a-z]+\\).* seen\\'"
                                            line)
                         collect (match-string 1 line))))
      (should-not (lines-seen))
      (qwen-companion-changes-test-press-at "@@ -17,7" "s")
      (qwen-companion-changes-test-settle)
      (should (equal '("@@ -17") (lines-seen)))
      ;; Point is on what comes next.
      (should (looking-at "@@ -32"))
      (qwen-companion-changes-test-press-at "Prompt of two" "TAB")
      (qwen-companion-changes-test-press-at "b.txt" "s")
      (should (looking-at ".*c\\.txt"))
      (qwen-companion-changes-test-settle)
      (should (equal '("b.txt" "@@ -17") (lines-seen)))
      (qwen-companion-changes-test-press-at "Prompt of two" "s")
      (should (looking-at ".*Prompt of one"))
      (qwen-companion-changes-test-settle)
      (should (equal '("Prompt of two" "b.txt" "c.txt" "@@ -17") (lines-seen)))
      ;; A prefix argument takes it back.
      (qwen-companion-changes-test-goto "c.txt")
      (let ((current-prefix-arg '(4)))
        (qwen-companion-test-press "s"))
      (qwen-companion-changes-test-settle)
      (should (equal '("b.txt" "@@ -17") (lines-seen))))))

(ert-deftest qwen-companion-changes-test-news-do-not-move-point ()
  "While an agent is at work, point, its column and the window stay."
  (qwen-companion-changes-test--with-hunks
    (search-forward "+twenty")
    (set-window-point nil (point))
    (let ((line (buffer-substring (line-beginning-position) (line-end-position)))
          (hunk (qwen-companion-hunks-view-hunk-at (point)))
          (tick (buffer-chars-modified-tick)))
      ;; A turn above, and news of another file in this one.
      (qwen-companion-changes-test-turn "two" '(("b.txt" "x\n")) :end nil)
      (qwen-companion-changes-test-shows "working")
      (should (equal line (buffer-substring (line-beginning-position) (line-end-position))))
      (should (eq hunk (qwen-companion-hunks-view-hunk-at (point))))
      (should (looking-back "twenty" 1))
      ;; The agent writes the same file again, in the same turn.
      (qwen-companion-changes-test-press-at "Prompt of two" "TAB")
      (qwen-companion-changes-test-unfold "b.txt")
      (qwen-companion-changes-test-goto "+x")
      (qwen-companion-changes-test-write "b.txt" "w\nx\n")
      (qwen-companion-changes-test-told 0 '(("b.txt" nil "w\nx\n" :kind added)))
      (qwen-companion-changes-test-shows "+w\n+x\n")
      (should (equal (list 'body "two" (expand-file-name "b.txt"))
                     (qwen-companion-items-key-at (point))))
      ;; Nothing at all happens where nothing has changed.
      (setq tick (buffer-chars-modified-tick))
      (qwen-companion-changes-test-settle)
      (should (= tick (buffer-chars-modified-tick))))))

(defun qwen-companion-changes-test--mark (from to)
  "Mark the lines from the one with FROM up to the one with TO, without it."
  (qwen-companion-changes-test-goto from)
  (push-mark (point) t t)
  (qwen-companion-changes-test-goto to)
  (set-window-point nil (point)))

(ert-deftest qwen-companion-changes-test-news-leave-the-region-on-its-lines ()
  "The undo key undoes the marked lines only, whatever came above or within."
  (qwen-companion-changes-test--with-hunks
    (let ((transient-mark-mode t))
      (qwen-companion-changes-test-goto "Prompt of one")
      (let ((view (qwen-companion-changes-items-await-view
                   (qwen-companion-changes-items-group-of "one") (expand-file-name "a.txt"))))
        (qwen-companion-changes-test--mark "@@ -17," "@@ -32,")
        (let ((marked (buffer-substring-no-properties (region-beginning) (region-end))))
          ;; A turn above, and a note at the first hunk, which is drawn anew.
          (qwen-companion-changes-test-turn "two" '(("b.txt" "x\n")) :end nil)
          (qwen-companion-backend-call
           'journal-seen
           (list :turn "one" :path (expand-file-name "a.txt") :seen t
                 :hunks (list (qwen-companion-changes-file-key
                               view (car (qwen-companion-changes-file-changes view))))))
          (qwen-companion-changes-test-shows "@@ -2,7 +2,7 @@ seen")
          (should (use-region-p))
          (should (equal marked (buffer-substring-no-properties (region-beginning) (region-end))))))
      (qwen-companion-test-press "k")
      (qwen-companion-changes-test--holds 5 "five" 35 nil))))

(ert-deftest qwen-companion-changes-test-lines-that-change-while-they-are-marked ()
  "Nothing is undone where the marked lines have become others."
  (qwen-companion-changes-test--with-hunks
    (let ((transient-mark-mode t)
          (text (qwen-companion-changes-test--new 2 "two" 5 "five" 20 "twenty" 35 nil)))
      (qwen-companion-changes-test--mark "-5" " 6")
      ;; The agent goes on in the same file and turn.
      (qwen-companion-changes-test-write "a.txt" text)
      (qwen-companion-changes-test-told 0 `(("a.txt" ,qwen-companion-changes-test--old ,text)))
      (qwen-companion-changes-test-shows "+two")
      (should-not (use-region-p))
      (qwen-companion-test-refused "lines in the region have just changed" (qwen-companion-test-press "k"))
      (should (equal text (qwen-companion-changes-test-bytes "a.txt"))))))

;;; Very many files

(defun qwen-companion-changes-test--files (added)
  "Return 500 files of a turn, each with ADDED lines."
  (cl-loop for number below 500
           collect (list :path (expand-file-name (format "file-%03d.txt" number))
                         :kind 'modified :by '(("run_shell_command" nil))
                         :added added :deleted 0)))

(defun qwen-companion-changes-test--add-files (added)
  "Add a turn with ADDED lines in each of `qwen-companion-changes-test--files'."
  (qwen-companion-changes-test-add
   (list :id "many" :root (directory-file-name default-directory) :session "conversation"
         :client "Qwen Code 0.24.4" :who 'agent :source 'hooks :prompt "Change them all"
         :start 1.0 :end 2 :files (qwen-companion-changes-test--files added))))

(defun qwen-companion-changes-test--count (text)
  "Return how many lines of the buffer of changes have TEXT."
  (how-many (regexp-quote text) (point-min) (point-max)))

(ert-deftest qwen-companion-changes-test-draws-very-many-files-little-by-little ()
  "Each file comes, point stays, and keys are handled between."
  (qwen-companion-changes-test-with ()
    (qwen-companion-changes-test-open)
    (qwen-companion-changes-test--add-files 1)
    (qwen-companion-changes-items-update)
    (should (< 10 (qwen-companion-changes-test--count "file-") 50))
    (should (string-search "500 files" (qwen-companion-changes-test-text)))
    (qwen-companion-changes-test-goto "file-007.txt")
    (set-window-point nil (point))
    (qwen-companion-test-wait-for (= 500 (qwen-companion-changes-test--count "file-")))
    (should (string-search "file-007.txt" (thing-at-point 'line)))
    ;; All are changed at once: none goes until it is drawn anew.
    (qwen-companion-changes-test-goto "file-450.txt")
    (set-window-point nil (point))
    (qwen-companion-changes-test--add-files 9)
    (qwen-companion-changes-items-update)
    (should (= 500 (qwen-companion-changes-test--count "file-")))
    (should (< 10 (qwen-companion-changes-test--count "+9 ") 50))
    (qwen-companion-test-wait-for (= 500 (qwen-companion-changes-test--count "+9 ")))
    (should (string-search "file-450.txt" (thing-at-point 'line)))
    ;; Unfolded again, all are there at once.
    (qwen-companion-changes-test-press-at "Change them all" "TAB")
    (should (= 0 (qwen-companion-changes-test--count "file-")))
    (qwen-companion-test-press "TAB")
    (should (= 500 (qwen-companion-changes-test--count "file-")))))

(ert-deftest qwen-companion-changes-test-waits-for-an-agent-at-work ()
  (qwen-companion-changes-test--with-hunks
    (let ((busy (list (list (expand-file-name "a.txt") "one" "edit")))
          (disk (qwen-companion-changes-test-bytes "a.txt"))
          question)
      (cl-flet ((press (answer)
                  (cl-letf (((symbol-function 'read-char-choice)
                             (lambda (prompt &rest _) (setq question prompt) answer)))
                    (condition-case nil
                        (qwen-companion-test-press "k")
                      (quit 'quit)))))
        (setq qwen-companion-changes-test-busy (list busy))
        (should (eq 'quit (press ?q)))
        (should (string-match-p "working on a.txt (edit)" question))
        (should (equal disk (qwen-companion-changes-test-bytes "a.txt")))
        (setq qwen-companion-changes-test-busy (list busy busy nil))
        (press ?w)
        (should (equal '(nil t t)
                       (mapcar (lambda (payload) (plist-get payload :wait))
                               (cdr (qwen-companion-test-sent 'journal-busy)))))
        (qwen-companion-changes-test--holds 20 "twenty" 35 nil)))))

(ert-deftest qwen-companion-changes-test-news-while-it-asks ()
  "A key that waits for an answer also waits for files compared anew meanwhile."
  (qwen-companion-changes-test--with-hunks
    (let ((answer (symbol-function 'qwen-companion-changes-test--answer)))
      (cl-letf (((symbol-function 'qwen-companion-changes-test--answer)
                 (lambda (method payload)
                   (when (eq method 'journal-busy)
                     (qwen-companion-journal-on-turns
                      (list :turns qwen-companion-changes-test-turns)))
                   (funcall answer method payload)))
                ((symbol-function 'qwen-companion-merge-compare)
                 (lambda (old new callback)
                   (run-at-time 0.05 nil callback (qwen-companion-test-compare old new)))))
        (qwen-companion-test-press "k")
        (qwen-companion-changes-test--holds 20 "twenty" 35 nil)
        ;; And a key that comes right after it.
        (qwen-companion-test-press "u")
        (qwen-companion-changes-test--holds 5 "five" 20 "twenty" 35 nil)))))

(ert-deftest qwen-companion-changes-test-leaves-files-alone-that-it-may-not-touch ()
  "Nothing is written through a link, outside of the root or into git."
  (let ((outside (make-temp-file "outside" t)))
    (unwind-protect
        (pcase-dolist (`(,change ,reason)
                       `((,(lambda () (delete-file "d/a.txt")
                             (make-symbolic-link (expand-file-name "t" outside) "d/a.txt"))
                          "symbolic link")
                         (,(lambda () (rename-file "d" "e") (make-symbolic-link outside "d"))
                          "outside the project")
                         (,(lambda () (delete-file "d/a.txt")) "no longer exists")
                         (,(lambda () (delete-file "d/a.txt") (make-directory "d/a.txt"))
                          "directory of that name")))
          (qwen-companion-changes-test-with '(("d/a.txt" "old\n"))
            (write-region "x\n" nil (expand-file-name "t" outside) nil 'silent)
            (write-region "new\n" nil (expand-file-name "a.txt" outside) nil 'silent)
            (qwen-companion-changes-test-turn "one" '(("d/a.txt" "new\n")))
            (qwen-companion-changes-test-open)
            (qwen-companion-changes-test-goto "a.txt")
            (funcall change)
            (let ((err (should-error (qwen-companion-test-press "k") :type 'user-error)))
              (should (string-match-p reason (cadr err))))
            (should (equal "x\n" (qwen-companion-changes-test-bytes
                                  (expand-file-name "t" outside))))
            (should (equal "new\n" (qwen-companion-changes-test-bytes
                                    (expand-file-name "a.txt" outside))))))
      (delete-directory outside t))))

(ert-deftest qwen-companion-changes-test-writes-nothing-into-git ()
  "Files below `.git', which may be a file, are refused, whatever the journal says."
  (dolist (name '(".git/hooks/post-checkout" "sub/.git/config" "worktree/.git"))
    (qwen-companion-changes-test-with-turn (list (list name "old\n")) (list (list name "new\n"))
      (qwen-companion-changes-test-goto name)
      (qwen-companion-test-refused "belongs to git" (qwen-companion-test-press "k"))
      (should (equal "new\n" (qwen-companion-changes-test-bytes name)))
      (should-not (qwen-companion-test-sent 'journal-wrote)))))

(ert-deftest qwen-companion-changes-test-does-not-delete-what-has-other-changes ()
  (qwen-companion-changes-test-with-turn nil '(("made" "m\n"))
    (qwen-companion-changes-test-write "made" "m\nmine\n")
    (qwen-companion-changes-test-goto "made")
    (qwen-companion-test-answering t
      (qwen-companion-test-refused "other changes" (qwen-companion-test-press "k")))
    (should (equal "m\nmine\n" (qwen-companion-changes-test-bytes "made")))
    ;; Nor when the edits are not saved.
    (qwen-companion-changes-test-write "made" "m\n")
    (with-current-buffer (find-file-noselect "made") (insert "unsaved"))
    (qwen-companion-test-answering t
      (should-error (qwen-companion-test-press "k") :type 'user-error))
    (should (file-exists-p "made"))))

(ert-deftest qwen-companion-changes-test-read-only ()
  "A buffer in which nobody types is changed all the same; a file is not."
  (qwen-companion-changes-test--with-hunks
    (with-current-buffer (find-file-noselect "a.txt") (setq buffer-read-only t))
    (qwen-companion-test-press "k")
    (qwen-companion-changes-test--holds 20 "twenty" 35 nil)
    (with-current-buffer (find-buffer-visiting "a.txt")
      (should buffer-read-only)
      (should-not (buffer-modified-p)))
    (cl-letf (((symbol-function 'file-writable-p) #'ignore))
      (qwen-companion-test-refused "read-only on disk" (qwen-companion-test-press "n" "k")))))

(ert-deftest qwen-companion-changes-test-modes-and-links ()
  (qwen-companion-changes-test-with '(("run" "#!/bin/sh\n"))
    (let ((texts (lambda (path before after before-mode after-mode)
                   (cl-letf (((symbol-function 'qwen-companion-changes-test--texts)
                              (lambda (&rest _)
                                (list :before before :after after
                                      :before-mode before-mode :after-mode after-mode))))
                     (qwen-companion-changes-test-goto path)
                     (qwen-companion-test-answering t
                       (qwen-companion-test-press "k"))))))
      (qwen-companion-changes-test-turn "one" '(("run" "#!/bin/sh\n" :kind mode) ("link" "x")))
      (set-file-modes "run" #o755)
      (qwen-companion-changes-test-open)
      (funcall texts "run" "#!/bin/sh\n" "#!/bin/sh\n" #o644 #o755)
      (should (= #o644 (logand #o777 (file-modes "run"))))
      (funcall texts "run" "#!/bin/sh\n" "#!/bin/sh\n" #o755 #o644)
      (should (= #o755 (logand #o777 (file-modes "run"))))
      ;; For an ordinary user, a file that the change itself made read-only.
      (cl-letf (((symbol-function 'file-writable-p)
                 (lambda (file)
                   (or (not (file-exists-p file)) (/= 0 (logand #o200 (file-modes file)))))))
        (set-file-modes "run" #o444)
        (funcall texts "run" "#!/bin/sh\n" "#!/bin/sh\n" #o644 #o444)
        (should (= #o644 (file-modes "run")))
        (qwen-companion-changes-test-write "run" "#!/bin/bash\n")
        (set-file-modes "run" #o444)
        (funcall texts "run" "#!/bin/sh\n" "#!/bin/bash\n" #o755 #o444)
        (should (= #o755 (file-modes "run")))
        (should (equal "#!/bin/sh\n" (qwen-companion-test-file-text "run"))))
      (delete-file "link")
      (make-symbolic-link "run" "link")
      (funcall texts "link" nil "run" nil 'link)
      (should-not (file-symlink-p "link"))
      (funcall texts "link" "run" nil 'link nil)
      (should (equal "run" (file-symlink-p "link")))
      ;; What is made again has the permission bits of before.
      (qwen-companion-changes-test-turn "two" '(("run" nil)))
      (qwen-companion-changes-test-settle)
      (qwen-companion-changes-test-press-at "Prompt of two" "TAB")
      (funcall texts "run  deleted" "#!/bin/sh\n" nil #o600 nil)
      (should (= #o600 (file-modes "run")))
      ;; A link to nowhere gets its name back.
      (make-symbolic-link "nowhere" "renamed")
      (qwen-companion-undo-apply-steps
       (list (cons "dangling"
                   (make-qwen-companion-undo-step
                    :root default-directory :path (expand-file-name "dangling")
                    :from (expand-file-name "renamed") :base "nowhere" :target "nowhere"
                    :base-mode 'link :target-mode 'link)))
       nil "Undo" 'undo)
      (should (equal "nowhere" (file-symlink-p "dangling")))
      (should-not (file-symlink-p "renamed")))))

(defun qwen-companion-changes-test--in-python (program)
  "Run the text PROGRAM in Python and return its output."
  (with-temp-buffer
    (should (eql 0 (call-process "python3" nil t nil "-c" program)))
    (buffer-string)))

(ert-deftest qwen-companion-changes-test-attributes-links-and-owners-stay ()
  "Owner, group, set-user-ID, extended attributes and other names, also in a buffer."
  (skip-unless (zerop (user-uid)))
  (dolist (visited '(nil t))
    (dolist (linked '(nil t))
      (qwen-companion-changes-test-with '(("a.txt" "1\n2\n3\n"))
        (when linked
          (add-name-to-file "a.txt" "b.txt"))
        (qwen-companion-changes-test-turn "one" '(("a.txt" "1\nX\n3\n")))
        (qwen-companion-changes-test--in-python
         "import os; os.chown('a.txt', 54321, 54322); os.chmod('a.txt', 0o6755); os.setxattr('a.txt', 'user.note', b'mine')")
        (when visited
          (find-file-noselect "a.txt"))
        (qwen-companion-changes-test-open)
        (qwen-companion-changes-test-press-at "a.txt" "k")
        (dolist (name (if linked '("a.txt" "b.txt") '("a.txt")))
          (should (equal "1\n2\n3\n" (qwen-companion-changes-test-bytes name)))
          (should (equal "54321 54322 0o6755 b'mine'\n"
                         (qwen-companion-changes-test--in-python
                          (format "import os; s = os.stat('%s'); print(s.st_uid, s.st_gid, oct(s.st_mode & 0o7777), os.getxattr('%s', 'user.note'))" name name)))))
        (should-not (directory-files "." nil "\\`\\.qwen-companion-"))))))

(ert-deftest qwen-companion-changes-test-a-link-made-by-the-agent-is-broken ()
  "Where another file got the name, that file stays, also one with unsaved text.
A hunk is undone as the whole file is."
  (pcase-dolist (`(,visited . ,hunk) '((nil) (nil . t) ("b.txt") ("a.txt") ("a.txt" . t)))
    (qwen-companion-changes-test-with '(("a.txt" "other\n") ("b.txt" "1\n"))
      (delete-file "b.txt")
      (add-name-to-file "a.txt" "b.txt")
      (qwen-companion-changes-test-turn "one" nil)
      (qwen-companion-changes-test-told 0 '(("b.txt" "1\n" "other\n" :apart t)))
      (when visited
        (find-file-noselect visited))
      (when (equal visited "a.txt")
        (with-current-buffer (get-file-buffer "a.txt")
          (insert "mine\n")))
      (qwen-companion-changes-test-open)
      (if hunk
          (qwen-companion-changes-test-unfold "b.txt")
        (qwen-companion-changes-test-goto "b.txt"))
      (qwen-companion-test-press "k")
      (should (equal '("other\n" "1\n")
                     (mapcar #'qwen-companion-changes-test-bytes '("a.txt" "b.txt"))))
      (when-let* ((buffer (get-file-buffer "a.txt")))
        (should (equal "mine\nother\n" (with-current-buffer buffer (buffer-string))))
        (with-current-buffer buffer
          (set-buffer-modified-p nil)))
      (when-let* ((buffer (get-file-buffer "b.txt")))
        (should (equal "1\n" (with-current-buffer buffer (buffer-string))))))))

(ert-deftest qwen-companion-changes-test-a-full-disk-cuts-nothing-off ()
  "A file with two names keeps its text on a disk without room for a longer one."
  (qwen-companion-changes-test-with nil
    (make-directory "disk")
    (skip-unless (eql 0 (call-process "mount" nil nil nil "-t" "tmpfs" "-o" "size=256k"
                                      "tmpfs" (expand-file-name "disk"))))
    (unwind-protect
        (let ((long (make-string 100000 ?a)))
          (qwen-companion-changes-test-write "disk/a.txt" (concat long "\n1\n2\n3\n"))
          (add-name-to-file "disk/a.txt" "disk/b.txt")
          (qwen-companion-changes-test-turn "one" '(("disk/a.txt" "1\n2\n3\n")))
          (qwen-companion-changes-test-write "disk/a.txt" "1\n2\n3\nmine\n")
          (qwen-companion-changes-test-write "disk/filling" (make-string 250000 ?x))
          (qwen-companion-changes-test-open)
          (qwen-companion-changes-test-goto "a.txt")
          (qwen-companion-test-refused "No space left on device" (qwen-companion-test-press "k"))
          (should (equal "1\n2\n3\nmine\n" (qwen-companion-changes-test-bytes "disk/b.txt")))
          (should-not (directory-files "disk" nil "\\`\\.qwen-companion-")))
      (call-process "umount" nil nil nil (expand-file-name "disk")))))

;;; A turn of many files

(defun qwen-companion-changes-test--undo-turn (heading)
  "Undo the turn with HEADING by the undo key, and return the messages."
  (qwen-companion-changes-test-settle)
  (qwen-companion-changes-test-goto heading)
  (qwen-companion-test-answering t
    (qwen-companion-test-messages (qwen-companion-test-press "k"))))

(ert-deftest qwen-companion-changes-test-files-and-directories-change-places ()
  "A file that became a directory comes back, and a directory that became a file."
  (qwen-companion-changes-test-with '(("a" "file\n") ("d/x" "x\n"))
    (delete-file "a")
    (rename-file "d/x" "x")
    (delete-directory "d")
    (qwen-companion-changes-test-write "a/b/c" "new\n")
    (qwen-companion-changes-test-write "d" "file\n")
    (qwen-companion-changes-test-turn "one" nil)
    (qwen-companion-changes-test-told 0 `(("a" "file\n" nil :kind deleted)
                                          ("a/b/c" nil "new\n" :kind added)
                                          ("d" nil "file\n" :kind added)
                                          ("x" "x\n" "x\n" :kind renamed :from ,(expand-file-name "d/x"))))
    (qwen-companion-changes-test-open)
    (qwen-companion-changes-test--undo-turn "Prompt of one")
    (should (equal '("file\n" "x\n" nil)
                   (mapcar #'qwen-companion-changes-test-bytes '("a" "d/x" "x"))))
    ;; All texts were asked for at once.
    (should (= 1 (length (qwen-companion-test-sent 'journal-texts))))))

(ert-deftest qwen-companion-changes-test-says-what-is-in-the-way ()
  "The user's file in a directory that replaced a file, and two files in each other's."
  (qwen-companion-changes-test-with '(("a/b" "mine\n") ("q/p" "p\n") ("p/q" "q\n"))
    (qwen-companion-changes-test-turn "one" nil)
    (qwen-companion-changes-test-told 0 `(("a" "file\n" nil :kind deleted)
                                          ("a/b" nil "new\n" :kind added)
                                          ("q/p" "p\n" "p\n" :kind renamed :from ,(expand-file-name "p"))
                                          ("p/q" "q\n" "q\n" :kind renamed :from ,(expand-file-name "q"))))
    (qwen-companion-changes-test-open)
    (qwen-companion-changes-test-settle)
    (qwen-companion-changes-test-goto "Prompt of one")
    (let ((said (qwen-companion-test-messages
                  (qwen-companion-test-answering t
                    (should-error (qwen-companion-test-press "k") :type 'user-error)))))
      (dolist (reason '("b (It has other changes too, so it is not deleted)"
                        "p (There is a directory of that name now, with q in it)"
                        "q (There is a directory of that name now, with p in it)"
                        "a (There is a directory of that name now, with b in it)"))
        (should (string-search (concat "Left alone: " reason) said))))
    (should (equal '("mine\n" "p\n" "q\n")
                   (mapcar #'qwen-companion-changes-test-bytes '("a/b" "q/p" "p/q"))))))

(ert-deftest qwen-companion-changes-test-no-file-keeps-others-from-being-undone ()
  "A link that leads to itself is deleted, and made again; one that fails is named.
So is a file in whose directory's place such a link is."
  (qwen-companion-changes-test-with-turn '(("a.txt" "a\n") ("b.txt" "b\n") ("z.txt" "z\n"))
      '(("a.txt" "A\n") ("b.txt" "B\n") ("c/in.txt" "C\n") ("loop" "loop") ("z.txt" "Z\n"))
    (delete-directory "c" t)
    (make-symbolic-link "c" "c")
    (delete-file "loop")
    (make-symbolic-link "loop" "loop")
    (make-directory "d")
    (make-symbolic-link "e" "d/e")
    (delete-file "b.txt")
    (make-symbolic-link "b.txt" "b.txt")
    (cl-letf* ((texts (symbol-function 'qwen-companion-changes-test--texts))
               ((symbol-function 'qwen-companion-changes-test--texts)
                (lambda (path &rest more)
                  (if (string-suffix-p "loop" path)
                      (list :before nil :after "loop" :before-mode nil :after-mode 'link)
                    (apply texts path more)))))
      (let ((said (qwen-companion-changes-test--undo-turn "Prompt of one")))
        (should (string-match-p
                 "Undone in 3 files; left alone: in\\.txt (Apparent cycle of .*), b\\.txt (It is a symbolic link now)"
                 said)))
      (should (equal '("a\n" "z\n") (mapcar #'qwen-companion-changes-test-bytes '("a.txt" "z.txt"))))
      (should-not (file-symlink-p "loop"))
      (goto-char (qwen-companion-items-start '(group "one")))
      (qwen-companion-test-answering t (qwen-companion-test-press "u"))
      (should (equal "loop" (file-symlink-p "loop")))
      ;; Whatever goes wrong with one.
      (cl-letf* ((write (symbol-function 'qwen-companion-disk-bytes))
                 ((symbol-function 'qwen-companion-disk-bytes)
                  (lambda (path)
                    (if (string-suffix-p "a.txt" path) (error "It is odd") (funcall write path)))))
        (goto-char (qwen-companion-items-start '(group "one")))
        (should (string-search "a.txt (It is odd)"
                               (qwen-companion-test-answering t
                                 (qwen-companion-test-messages (qwen-companion-test-press "k"))))))
      (should (equal '("A\n" "z\n") (mapcar #'qwen-companion-changes-test-bytes '("a.txt" "z.txt")))))))

(ert-deftest qwen-companion-changes-test-an-answer-that-does-not-come-is-said-of-the-right-files ()
  (qwen-companion-changes-test-with-turn '(("a" "a\n") ("b" "b\n") ("c" "c\n") ("d" "d\n"))
      '(("a" "A\n") ("b" "B\n") ("c" "C\n") ("d" "D\n"))
    (let* ((ask (symbol-function 'qwen-companion-backend-call))
           (next (symbol-function 'qwen-companion-journal-next-texts))
           (qwen-companion-journal--texts-at-once 2)
           (qwen-companion-journal--texts-limit 0.05)
           (asked 0)
           (held nil)
           said)
      (cl-letf (((symbol-function 'qwen-companion-backend-call)
                 (lambda (method payload)
                   (if (and (eq method 'journal-texts) (= 2 (cl-incf asked)))
                       (setq held payload)
                     (funcall ask method payload))))
                ((symbol-function 'qwen-companion-journal-next-texts)
                 (lambda (texts)
                   (condition-case err
                       (funcall next texts)
                     (user-error
                      ;; The answer comes late.
                      (when held
                        (funcall ask 'journal-texts (cl-shiftf held nil)))
                      (signal (car err) (cdr err)))))))
        (setq said (qwen-companion-changes-test--undo-turn "Prompt of one"))
        (let ((reason "(The companion does not answer; try again in a moment)"))
          (should (string-search (format "Undone in 2 files; left alone: c %s, d %s" reason reason)
                                 said)))
        (should (equal '("a\n" "b\n" "C\n" "D\n")
                       (mapcar #'qwen-companion-changes-test-bytes '("a" "b" "c" "d"))))))))

(ert-deftest qwen-companion-changes-test-deletes-the-directories-that-were-made ()
  "Only where their time of birth, here as a program of its own tells it, is known."
  (qwen-companion-changes-test-with '(("a" "a\n"))
    (make-directory "bin")
    (let ((exec-path (cons (expand-file-name "bin") exec-path)))
      (pcase-dolist (`(,born . ,stays)
                     '(("echo 9999999999" . nil) ("echo 1" . t) ("echo 0" . t) ("echo -" . t) ("exit 1" . t)))
        (qwen-companion-changes-test-write
         "bin/stat" (format "#!/bin/sh\nshift 2\nfor each; do %s; done\n" born))
        (set-file-modes "bin/stat" #o755)
        (qwen-companion-changes-test-turn born '(("made/deep/new" "new\n")))
        (qwen-companion-changes-test-open)
        (qwen-companion-changes-test--undo-turn (concat "Prompt of " born))
        (should-not (file-exists-p "made/deep/new"))
        (should (eq stays (file-directory-p "made/deep")))
        (should (eq stays (file-directory-p "made")))))))

(ert-deftest qwen-companion-changes-test-a-directory-made-just-before-a-turn-is-not-the-agents ()
  "Where the file system has no times of birth, no directory is, and this is skipped."
  (qwen-companion-changes-test-with '(("a" "a\n"))
    (make-directory "made")
    (let ((made (* 1000 (float-time))))
      (cl-flet ((born-p (after) (qwen-companion-test-born-after-p "made" after)))
        (skip-unless (born-p 0))
        (should (born-p (- made 100)))
        (should-not (born-p (+ made 100)))))))

(ert-deftest qwen-companion-changes-test-quits-between-two-files ()
  "It says how far it came, and the same key goes on."
  (qwen-companion-changes-test-with-turn '(("a" "1\n") ("b" "1\n") ("c" "1\n")) '(("a" "2\n") ("b" "2\n") ("c" "2\n"))
    (let* ((write (symbol-function 'qwen-companion-undo--write))
           (said (cl-letf (((symbol-function 'qwen-companion-undo--write)
                            (lambda (&rest arguments)
                              (apply write arguments)
                              (setq quit-flag t))))
                   (qwen-companion-changes-test--undo-turn "Prompt of one"))))
      (should (string-match-p
               "Undone in 1 file; stopped, 2 files left as they are; repeat to continue"
               said)))
    (should (equal '("1\n" "2\n" "2\n")
                   (mapcar #'qwen-companion-changes-test-bytes '("a" "b" "c"))))
    ;; What was asked for and not used is not left behind.
    (should-not (directory-files (qwen-companion-backend-spool) nil "\\`bytes-"))
    ;; So it does while the texts are waited for.
    (let ((call (symbol-function 'qwen-companion-backend-call)))
      (cl-letf (((symbol-function 'qwen-companion-backend-call)
                 (lambda (method payload)
                   (or (eq method 'journal-texts) (funcall call method payload)))))
        (run-at-time 0.1 nil (lambda () (setq quit-flag t)))
        (should (equal "Stopped, 3 files left as they are; repeat to continue"
                       (qwen-companion-changes-test--undo-turn "partly undone")))))
    (qwen-companion-changes-test--undo-turn "partly undone")
    (should (equal '("1\n" "1\n" "1\n")
                   (mapcar #'qwen-companion-changes-test-bytes '("a" "b" "c"))))))

(ert-deftest qwen-companion-changes-test-lets-timers-run-between-the-steps-of-an-undo ()
  "The files, the report to the journal, the directories and the list, if each takes a while."
  (qwen-companion-changes-test-with-turn '(("a" "1\n") ("b" "1\n")) '(("a" "2\n") ("b" "2\n"))
    (let* ((ran nil)
           (seen nil)
           (slowly (lambda (symbol)
                     (let ((function (symbol-function symbol)))
                       (lambda (&rest arguments)
                         (push (cons symbol ran) seen)
                         (setq ran nil)
                         (prog1 (apply function arguments)
                           (run-at-time 0 nil (lambda () (setq ran t)))
                           (let ((end (+ 0.1 (float-time))))
                             (while (< (float-time) end)))))))))
      (cl-letf (((symbol-function 'qwen-companion-undo--write)
                 (funcall slowly 'qwen-companion-undo--write))
                ((symbol-function 'qwen-companion-journal-wrote)
                 (funcall slowly 'qwen-companion-journal-wrote))
                ((symbol-function 'qwen-companion-undo--delete-made-directories)
                 (funcall slowly 'qwen-companion-undo--delete-made-directories))
                ((symbol-function 'qwen-companion-changes-undo-report)
                 (funcall slowly 'qwen-companion-changes-undo-report)))
        (qwen-companion-changes-test--undo-turn "Prompt of one"))
      (should (equal '((qwen-companion-undo--write)
                       (qwen-companion-undo--write . t)
                       (qwen-companion-journal-wrote . t)
                       (qwen-companion-undo--delete-made-directories . t)
                       (qwen-companion-changes-undo-report . t))
                     (nreverse seen))))))

(ert-deftest qwen-companion-changes-test-journal-without-an-answer ()
  (qwen-companion-changes-test--with-hunks
    (cl-letf (((symbol-function 'qwen-companion-changes-test--texts)
               (lambda (&rest _) (list :error "it was removed\e[2J"))))
      (qwen-companion-test-press "g")
      (qwen-companion-changes-test-shows "It was removed\\u001B[2J; g tries again")
      (qwen-companion-changes-test-goto "a.txt")
      (should-error (qwen-companion-test-press "k") :type 'user-error))
    ;; The process is gone.
    (cl-letf (((symbol-function 'qwen-companion-backend-connected-p) #'ignore))
      (qwen-companion-test-refused "not running" (qwen-companion-test-press "k")))
    ;; And a new one is there.
    (qwen-companion-journal-resend)
    (qwen-companion-changes-test-shows "+twenty")))

(ert-deftest qwen-companion-changes-test-still-comparing ()
  (qwen-companion-changes-test-with '(("a.txt" "a\n"))
    (let ((qwen-companion-changes-items--patience 0.1))
      (qwen-companion-changes-test-turn "one" '(("a.txt" "b\n")))
      (qwen-companion-changes-test-open)
      (setq qwen-companion-changes-test-hold t)
      (qwen-companion-changes-test-unfold "a.txt")
      (should (string-search "Comparing..." (qwen-companion-changes-test-text)))
      (should-error (qwen-companion-test-press "k") :type 'user-error)
      (qwen-companion-changes-test-release)
      (qwen-companion-changes-test-shows "-a\n+b\n")
      ;; What is shown and where point is stay while it is looked at again.
      (qwen-companion-changes-test-goto "+b")
      (let ((tick (buffer-chars-modified-tick)))
        (setq qwen-companion-changes-test-hold t)
        (qwen-companion-test-press "g")
        (qwen-companion-changes-test-settle)
        (qwen-companion-changes-test-release)
        (cl-letf (((symbol-function 'qwen-companion-merge-compare) #'ignore))
          (setq qwen-companion-changes-test-hold t)
          (qwen-companion-test-press "g")
          (qwen-companion-changes-test-release)
          (qwen-companion-changes-items-update)
          (should (looking-at "\\+b$"))
          (should (= tick (buffer-chars-modified-tick)))
          (should-error (qwen-companion-test-press "k") :type 'user-error)
          (should (equal "b\n" (qwen-companion-changes-test-bytes "a.txt"))))))))

(ert-deftest qwen-companion-changes-test-mode-off-leaves-nothing ()
  (qwen-companion-changes-test--with-hunks
    (let ((hidden (qwen-companion-test-buffers-with "twenty")))
      (should (cl-some (lambda (name) (string-prefix-p " *qwen-companion after" name)) hidden))
      (run-hook-with-args 'qwen-companion-state-functions 'off)
      (should-not (get-buffer qwen-companion-changes-items-buffer-name))
      (should-not (cl-some #'get-buffer hidden)))
    (should-not (memq #'qwen-companion-changes--changed qwen-companion-journal-changed-functions))
    (should-error (qwen-companion-test-with-state 'off (qwen-companion-changes))
                  :type 'user-error)))

(ert-deftest qwen-companion-changes-test-hostile-names-and-prompts ()
  (qwen-companion-changes-test-with nil
    (qwen-companion-changes-test-turn
     "one" '(("a\u202e\n.txt" "x\u202ey\n")) :prompt "do\e[31m\u202e %s" :client "Q\nwen")
    (qwen-companion-changes-test-open)
    (qwen-companion-changes-test-unfold ".txt")
    (let ((text (qwen-companion-changes-test-text)))
      (should (string-search "do\\u001B[31m\\u202E %s" text))
      (should (string-search "a\\u202E\\n.txt" text)))
    (should-not (string-search "\u202e" (qwen-companion-test-header)))
    (search-forward "+x")
    (should (cl-some (lambda (overlay) (overlay-get overlay 'qwen-companion-untrusted))
                     (overlays-in (point) (line-end-position))))))

(ert-deftest qwen-companion-changes-test-comments-go-to-the-clipboard-without-a-terminal ()
  (qwen-companion-changes-test--with-hunks
    (should-error (qwen-companion-test-press "C-c C-c") :type 'user-error)
    (qwen-companion-changes-test-goto "+twenty")
    (qwen-companion-test-choosing "Why 20?\e[201~" (qwen-companion-test-press "c"))
    (should (string-match-p "1 comment: C-c C-c sends" (qwen-companion-test-header)))
    (should (cl-some (lambda (overlay)
                       (string-search "Why 20?" (or (overlay-get overlay 'after-string) "")))
                     (overlays-at (point))))
    ;; It is still there after news.
    (qwen-companion-test-press "g")
    (qwen-companion-changes-test-settle)
    (should (cl-some (lambda (overlay) (overlay-get overlay 'qwen-companion-changes-comments))
                     (overlays-in (point-min) (point-max))))
    (qwen-companion-test-said "takes no prompts" (qwen-companion-test-press "C-c C-c"))
    (should (equal "Comments on your changes:\n\na.txt:20\n> +twenty\nWhy 20?\e[201~\n"
                   (substring-no-properties (current-kill 0))))
    (should-error (qwen-companion-test-press "C-c C-c") :type 'user-error)))

(ert-deftest qwen-companion-changes-test-comments-are-pasted-and-sent ()
  "They go as one bracketed paste, which no text can end, and a return."
  (qwen-companion-changes-test--with-hunks
    (let* ((terminal (generate-new-buffer "*terminal*"))
           (sent nil)
           (process (make-process :name "qwen-companion-test-cat" :command '("cat")
                                  :buffer terminal :noquery t :connection-type 'pipe))
           (session (list :id "s" :client "qwen" :directory directory :pid 1
                          :ancestors (list (process-id process)))))
      (qwen-companion-changes-test-add (append '(:cli "s") (car qwen-companion-changes-test-turns)))
      (unwind-protect
          (cl-letf (((symbol-function 'qwen-companion-backend-sessions) (lambda () (list session)))
                    ((symbol-function 'process-send-string)
                     (lambda (_process text) (push text sent)))
                    ((symbol-function 'read-string) (lambda (&rest _) "No.\e[201~\r")))
            (qwen-companion-changes-test-press-at "+twenty" "c")
            ;; The one that has done it, of two in the project.
            (let ((other (list :id "other" :client "qwen" :directory directory)))
              (cl-letf (((symbol-function 'qwen-companion-backend-sessions)
                         (lambda () (list other session))))
                (with-current-buffer qwen-companion-changes-items-buffer-name
                  (should (equal "s" (plist-get (qwen-companion-changes-comments--session) :id)))
                  ;; The user chooses where it has gone and others are there.
                  (cl-letf (((symbol-function 'qwen-companion-backend-sessions)
                             (lambda ()
                               (list other
                                     (list :id "third" :client "qwen" :pid 3 :directory directory
                                           :state (list :activity 'idle
                                                        :since (* 1000 (float-time)))))))
                            ((symbol-function 'completing-read)
                             (lambda (_prompt table &rest _)
                               (pcase-let ((`(,category . ,offered) (qwen-companion-test-candidates table)))
                                 (should (eq 'qwen-companion-session category))
                                 (should (string-match-p "\\`  idle for [0-9]+ s\\'"
                                                         (cdr (assoc "qwen 3" offered)))))
                               "qwen 3")))
                    (should (equal "third"
                                   (plist-get (qwen-companion-changes-comments--session) :id)))))))
            ;; Not while it is asking something.
            (setq session (plist-put session :state '(:activity asking)))
            (qwen-companion-test-press "C-c C-c")
            (should-not sent)
            (should (qwen-companion-prompts-waiting terminal))
            (setq session (plist-put session :state '(:activity idle)))
            (qwen-companion-prompts-sessions-changed)
            (should (equal '("\e[200~Comments on your changes:\n\na.txt:20\n> +twenty\nNo.[201~\n\e[201~")
                           sent))
            (qwen-companion-test-wait-for (cdr sent))
            (should (equal "\r" (car sent))))
        (delete-process process)
        (kill-buffer terminal)))))

(defun qwen-companion-changes-test--requested ()
  "Return the last request for the index: (ACTION (FILE . BYTES)...).
BYTES is nil for a whole change."
  (let ((request (cdr (assq 'journal-stage qwen-companion-test-calls))))
    (cons (plist-get request :action)
          (mapcar (lambda (file)
                    (cons (file-name-nondirectory (plist-get file :path))
                          (and (plist-get file :text)
                               (base64-decode-string (plist-get file :text)))))
                  (plist-get request :files)))))

(ert-deftest qwen-companion-changes-test-patches ()
  (qwen-companion-changes-test-with
      (list (list "a.txt" qwen-companion-changes-test--old) '("gone" "g\n"))
    (qwen-companion-changes-test-turn
     "one" (list (list "a.txt" (qwen-companion-changes-test--new 5 "five" 20 "twenty"))
                 '("new" "n") '("gone" nil)))
    (qwen-companion-changes-test-open)
    (qwen-companion-changes-test-press-at "Prompt of one" "w")
    (should (equal "the patch\n" (current-kill 0)))
    (should (equal '(patch ("a.txt") ("gone") ("new")) (qwen-companion-changes-test--requested)))
    ;; One hunk of a file, and what is undone is left out.
    (qwen-companion-changes-test-unfold "a.txt")
    (qwen-companion-changes-test-press-at "@@ -17" "w")
    (should (equal (list 'patch (cons "a.txt" (qwen-companion-changes-test--new 20 "twenty")))
                   (qwen-companion-changes-test--requested)))
    (qwen-companion-changes-test-press-at "@@ -17" "k")
    (cl-letf (((symbol-function 'read-file-name)
               (lambda (&rest _) (expand-file-name "turn.patch"))))
      (qwen-companion-changes-test-press-at "Prompt of one" "W"))
    (should (equal "the patch\n" (qwen-companion-changes-test-bytes "turn.patch")))
    (should (equal (list 'patch (cons "a.txt" (qwen-companion-changes-test--new 5 "five"))
                         '("gone") '("new"))
                   (qwen-companion-changes-test--requested)))))

(ert-deftest qwen-companion-changes-test-commits ()
  (qwen-companion-changes-test-with (list (list "a.txt" qwen-companion-changes-test--old))
    (delete-directory ".git" t)
    (let ((process-environment
           (append '("GIT_AUTHOR_NAME=U" "GIT_AUTHOR_EMAIL=u@example.org" "GIT_COMMITTER_NAME=U"
                     "GIT_COMMITTER_EMAIL=u@example.org" "GIT_CONFIG_GLOBAL=/dev/null")
                   process-environment))
          (qwen-companion-changes-commit-trailer "Qwen-Session"))
      (should (eq 0 (call-process "git" nil nil nil "init" "--quiet")))
      (qwen-companion-changes-test-turn
       "one" (list (list "a.txt" (qwen-companion-changes-test--new 5 "five" 20 "twenty")))
       :prompt "# Number two lines")
      (qwen-companion-changes-test-open)
      (qwen-companion-changes-test-unfold "a.txt")
      ;; Others are staged: the user says no, then yes.
      (dolist (yes '(nil t))
        (setq qwen-companion-changes-test-staged (list '(:others 2) '(:staged 1)))
        (let (asked)
          (cl-letf (((symbol-function 'y-or-n-p) (lambda (text) (setq asked text) yes)))
            (if yes
                (qwen-companion-changes-test-press-at "@@ -2" "C")
              (should-error (qwen-companion-changes-test-press-at "@@ -2" "C") :type 'user-error)))
          (should (equal "2 other files are already staged; commit them too? " asked))))
      (should (equal (list 'add (cons "a.txt" (qwen-companion-changes-test--new 5 "five")))
                     (qwen-companion-changes-test--requested)))
      (with-current-buffer (window-buffer)
        (should (derived-mode-p 'log-edit-mode))
        (should (equal "Summary: Number two lines\n\nQwen-Session: conversation\n" (buffer-string)))
        ;; What git commits is its index.
        (should (eq 0 (call-process "git" nil nil nil "add" "a.txt")))
        (qwen-companion-changes-test-write "a.txt" "mine\n")
        (qwen-companion-test-press "C-c C-c"))
      (should-not (get-buffer "*qwen-companion commit*"))
      (should (equal (concat "Number two lines\n\nQwen-Session: conversation\n\n"
                             (qwen-companion-changes-test--new 5 "five" 20 "twenty"))
                     (let ((default-directory directory))
                       (with-temp-buffer
                         (call-process "git" nil t nil "log" "--format=%B")
                         (call-process "git" nil t nil "cat-file" "blob" "HEAD:a.txt")
                         (buffer-string)))))
      (should (equal "mine\n" (qwen-companion-changes-test-bytes (expand-file-name "a.txt" directory)))))))

(declare-function log-edit-files "log-edit" ())

(ert-deftest qwen-companion-changes-test-a-message-that-is-being-written-stays ()
  (qwen-companion-changes-test-with '(("a.txt" "1\n") ("b.txt" "1\n"))
    (qwen-companion-changes-test-turn "one" '(("a.txt" "2\n")) :prompt "First")
    (qwen-companion-changes-test-turn "two" '(("b.txt" "2\n")) :prompt "Second")
    (qwen-companion-changes-test-open)
    (let ((changes (current-buffer)))
      (cl-flet ((commit (prompt)
                  (setq qwen-companion-changes-test-staged (list '(:staged 1)))
                  (switch-to-buffer changes)
                  (delete-other-windows)
                  (qwen-companion-changes-test-press-at prompt "C")
                  (get-buffer "*qwen-companion commit*")))
        (unwind-protect
            (progn
              ;; Untouched, it is of the last turn.
              (commit "First")
              (with-current-buffer (commit "Second")
                (should (equal "Summary: Second" (buffer-string)))
                (goto-char (point-max))
                (insert "\n\nMy words"))
              (with-current-buffer (commit "First")
                (should (equal "Summary: Second\n\nMy words" (buffer-string)))
                (should (equal '("b.txt" "a.txt") (log-edit-files)))
                (setq default-directory "/")
                (let ((qwen-companion-test-calls nil))
                  (qwen-companion-test-refused "is unfinished" (commit "First"))
                  (should-not (qwen-companion-test-sent 'journal-stage)))
                (with-current-buffer "*qwen-companion commit*"
                  (should (equal "Summary: Second\n\nMy words" (buffer-string))))))
          (setq qwen-companion-changes-test-staged nil)
          (kill-buffer "*qwen-companion commit*"))))))

(ert-deftest qwen-companion-changes-test-commits-with-magit ()
  "Magit gets the message; without a prompt, git asks for one as ever."
  (qwen-companion-changes-test-with '(("a.txt" "1\n"))
    (qwen-companion-changes-test-turn "one" '(("a.txt" "2\n")) :prompt "# Count")
    (qwen-companion-changes-test-turn "two" '(("a.txt" "3\n")) :prompt "")
    (qwen-companion-changes-test-open)
    (let ((qwen-companion-changes-commit-trailer "Qwen-Session")
          got)
      (cl-letf (((symbol-function 'magit-commit-create)
                 (lambda (arguments) (push (cons default-directory arguments) got))))
        (provide 'magit)
        (unwind-protect
            (progn
              (setq qwen-companion-changes-test-staged (list '(:staged 1) '(:staged 1)))
              (qwen-companion-changes-test-press-at "Count" "C")
              (should (equal `((,directory "--edit"
                                           "--message=Count\n\nQwen-Session: conversation\n"))
                             got))
              (setq qwen-companion-changes-commit-trailer nil)
              (qwen-companion-changes-test-press-at "(no prompt)" "C")
              (should (equal `(,directory "--edit") (car got))))
          (setq features (delq 'magit features)
                qwen-companion-changes-test-staged nil))))))

(ert-deftest qwen-companion-changes-test-in-a-buffer-that-follows-the-disk ()
  "With real merging and following, undoing is one step, saved, without questions."
  (qwen-companion-changes-test-with-process
    (qwen-companion-changes-test-write "a.txt" qwen-companion-changes-test--old)
    (let ((buffer (find-file-noselect "a.txt")))
      (qwen-companion-changes-test-turn
       "one" (list (list "a.txt" (qwen-companion-changes-test--new 5 "five" 20 "twenty" 35 nil))))
      (cl-flet ((wait-for (text)
                  (qwen-companion-test-wait-for
                   (equal text (qwen-companion-test-buffer-text buffer)))))
        (wait-for (qwen-companion-changes-test--new 5 "five" 20 "twenty" 35 nil))
        (qwen-companion-changes-test-open)
        (qwen-companion-changes-test-unfold "a.txt")
        (cl-letf (((symbol-function 'y-or-n-p) (lambda (&rest _) (ert-fail "Asked")))
                  ((symbol-function 'ask-user-about-supersession-threat)
                   (lambda (&rest _) (ert-fail "Asked about the file"))))
          (qwen-companion-test-press "k")
          (qwen-companion-changes-test--holds 20 "twenty" 35 nil)
          (should-not (buffer-modified-p buffer))
          ;; An agent goes on, and the buffer follows.
          (qwen-companion-changes-test-turn
           "two" (list (list "a.txt" (qwen-companion-changes-test--new
                                      20 "twenty" 35 nil 40 "end"))))
          (wait-for (qwen-companion-changes-test--new 20 "twenty" 35 nil 40 "end"))
          ;; Unsaved text stays unsaved, and what is undone is in it.
          (with-current-buffer buffer
            (goto-char (point-min))
            (insert "mine\n"))
          (qwen-companion-changes-test-settle)
          (qwen-companion-changes-test-press-at "@@ -17" "k")
          (should (buffer-modified-p buffer))
          (should (equal (concat "mine\n" (qwen-companion-changes-test--new 35 nil 40 "end"))
                         (qwen-companion-test-buffer-text buffer)))
          (with-current-buffer buffer
            (save-buffer))
          (let ((text (concat "mine\n" (qwen-companion-changes-test--new 35 nil 40 "end"))))
            (should (equal text (qwen-companion-changes-test-bytes "a.txt")))
            ;; Pressed at once, a key waits until the buffer has followed: a file
            ;; that has lost most of its text may still be being written.
            (qwen-companion-changes-test-turn "three" '(("a.txt" "little\n")))
            (qwen-companion-changes-test-settle)
            (qwen-companion-changes-test-goto "Prompt of three")
            (cl-letf (((symbol-function 'y-or-n-p) #'always)
                      (qwen-companion-disk-idle-writer 0.7))
              (qwen-companion-test-press "k"))
            (should (equal text (qwen-companion-changes-test-bytes "a.txt")))
            (should (equal text (qwen-companion-test-buffer-text buffer)))
            (should-not (buffer-modified-p buffer))))))))

(ert-deftest qwen-companion-changes-test-scopes ()
  (qwen-companion-changes-test-with '(("a.txt" "1\n2\n3\n"))
    (qwen-companion-changes-test-turn "one" '(("a.txt" "1\nX\n3\n")))
    (qwen-companion-changes-test-turn "two" '(("a.txt" "1\nX\nY\n")) :client "Gemini CLI")
    (qwen-companion-changes-test-open)
    (pcase-dolist (`(,command ,scope ,title)
                   '((qwen-companion-changes-show-since since "Since: Prompt of two")
                     (qwen-companion-changes-show-session session "This session")
                     (qwen-companion-changes-show-unseen look "Not seen yet")
                     (qwen-companion-changes-show-since-commit commit "Since the last commit")))
      (call-interactively command)
      (should (string-search title (qwen-companion-changes-test-text)))
      (should (string-search title (qwen-companion-test-header)))
      (should (eq scope (plist-get (car (last (qwen-companion-test-sent 'journal-files))) :scope)))
      (qwen-companion-changes-test-unfold "a.txt")
      (should (string-search "-2\n-3\n+X\n+Y\n" (qwen-companion-changes-test-text)))
      (qwen-companion-changes-show-turns))
    ;; One CLI.
    (qwen-companion-changes-test-goto "Prompt of two")
    (qwen-companion-changes-toggle-client)
    (should-not (string-search "Prompt of one" (qwen-companion-changes-test-text)))
    (qwen-companion-changes-toggle-client)
    (should (string-search "Prompt of one" (qwen-companion-changes-test-text)))))

(ert-deftest qwen-companion-changes-test-of-one-of-several-agents ()
  "A turn of several agents names each of them, and no session."
  (qwen-companion-changes-test-with '(("a.txt" "1\n"))
    (qwen-companion-changes-test-turn "one" '(("a.txt" "2\n")) :client "Gemini CLI 0.61.0")
    (qwen-companion-changes-test-turn
     "both" '(("a.txt" "3\n"))
     :client "Qwen Code 0.24.4 or Qwen Code 0.24.5 or Gemini CLI 0.61.0" :session "")
    (qwen-companion-changes-test-open)
    (should (string-search "Qwen Code or Gemini CLI  Prompt of both"
                           (qwen-companion-changes-test-text)))
    (qwen-companion-changes-test-goto "Prompt of both")
    (should-error (call-interactively #'qwen-companion-changes-show-session) :type 'user-error)
    (qwen-companion-changes-test-goto "Prompt of one")
    (qwen-companion-changes-toggle-client)
    (should (string-search "Prompt of both" (qwen-companion-changes-test-text)))
    (qwen-companion-changes-toggle-client)
    (let ((qwen-companion-changes-commit-trailer "Qwen-Session")
          got)
      (cl-letf (((symbol-function 'magit-commit-create)
                 (lambda (arguments) (setq got arguments))))
        (provide 'magit)
        (unwind-protect
            (progn
              (setq qwen-companion-changes-test-staged (list '(:staged 1)))
              (qwen-companion-changes-test-press-at "Prompt of both" "C")
              (should (equal '("--edit" "--message=Prompt of both") got)))
          (setq features (delq 'magit features)
                qwen-companion-changes-test-staged nil))))))

(ert-deftest qwen-companion-changes-test-in-words ()
  "A hunk can be read as a sentence, also one that is undone."
  (qwen-companion-changes-test--with-hunks
    (qwen-companion-changes-test-goto "+twenty")
    (should (equal "Line 20, removed: 20; added: twenty."
                   (qwen-companion-test-messages (qwen-companion-test-press "."))))
    (qwen-companion-test-press "k")
    (qwen-companion-changes-test-settle)
    (qwen-companion-changes-test-goto "+twenty")
    (should (string-prefix-p "Undone.  Line 20, removed: 20"
                             (qwen-companion-test-messages (qwen-companion-test-press "."))))
    (goto-char (point-min))
    (should-error (qwen-companion-test-press ".") :type 'user-error)))

(ert-deftest qwen-companion-changes-test-visits-the-line ()
  (qwen-companion-changes-test--with-hunks
    (qwen-companion-changes-test-goto "+twenty")
    (qwen-companion-changes-test-write
     "a.txt" (concat "0\n0\n" (qwen-companion-changes-test--new 5 "five" 20 "twenty" 35 nil)))
    (qwen-companion-test-press "RET")
    (should (equal (expand-file-name "a.txt") buffer-file-name))
    (should (looking-at "twenty$"))
    (goto-char (point-min))
    (qwen-companion-changes-test-open)
    (goto-char (point-min))
    (should (member "Changes" (qwen-companion-test-context-menu "+twenty")))
    (should (looking-at "\\+twenty"))
    (goto-char (point-min))
    (qwen-companion-test-click 'mouse-2 "+twenty")
    (set-buffer (window-buffer))
    (should (looking-at "twenty$"))
    (delete-file "a.txt")
    (qwen-companion-changes-test-open)
    (qwen-companion-changes-test-goto "+twenty")
    (should-error (qwen-companion-test-press "RET") :type 'user-error)))

(ert-deftest qwen-companion-changes-test-ediff-with-the-text-before ()
  (qwen-companion-changes-test--with-hunks
    (let (compared)
      (cl-letf (((symbol-function 'ediff-buffers)
                 (lambda (a b &rest _)
                   (setq compared (mapcar (lambda (buffer) (qwen-companion-test-buffer-text buffer))
                                          (list a b))))))
        (qwen-companion-test-press "e"))
      (should (equal (list qwen-companion-changes-test--old
                           (qwen-companion-changes-test--new 5 "five" 20 "twenty" 35 nil))
                     compared)))))

(ert-deftest qwen-companion-changes-test-compares-with-the-proposal ()
  (qwen-companion-changes-test--with-hunks
    (should-error (qwen-companion-test-press "=") :type 'user-error)
    (let ((turn (car qwen-companion-changes-test-turns)))
      (setq qwen-companion-journal--proposals
            (list (cons (expand-file-name "a.txt")
                        (cons (1+ (/ (plist-get turn :start) 1000.0))
                              (qwen-companion-changes-test--new 5 "FIVE" 20 "twenty" 35 nil)))))
      (qwen-companion-journal-on-turns
       (list :turns (list (plist-put (copy-sequence turn) :end nil))))
      (cl-letf (((symbol-function 'float-time) (lambda (&rest _) 1.0e12)))
        (qwen-companion-test-press "="))
      (qwen-companion-test-wait-for
       (cl-some (lambda (buffer) (string-match-p "difference: a.txt" (buffer-name buffer)))
                (buffer-list)))
      (with-current-buffer (get-buffer "*qwen-companion difference: a.txt*")
        (should (string-search "-FIVE\n+five\n" (buffer-string)))))))

(ert-deftest qwen-companion-changes-test-long-files-in-parts ()
  (qwen-companion-changes-test-with nil
    (let ((many (mapconcat (lambda (n) (format "%d\n" n)) (number-sequence 1 4000) "")))
      (qwen-companion-changes-test-write "big" many)
      (qwen-companion-changes-test-turn
       "one" (list (list "big" (replace-regexp-in-string "0\n" "0!\n" many))))
      (qwen-companion-changes-test-open)
      (qwen-companion-changes-test-unfold "big")
      (should (< (count-lines (point-min) (point-max)) 3000))
      (goto-char (point-min))
      (while (progn (qwen-companion-changes-test-settle)
                    (let ((place (text-property-not-all
                                  (point-min) (point-max)
                                  'qwen-companion-hunks-view-action nil)))
                      (when place (goto-char place))))
        (set-window-point nil (point))
        (qwen-companion-test-press "RET"))
      (should (string-search "+4000!\n" (qwen-companion-changes-test-text))))))

(ert-deftest qwen-companion-changes-test-a-name-that-is-not-unicode-ends-nothing ()
  "A file with a name in another encoding is saved, and its changes are asked for."
  (qwen-companion-test-with-process
    (qwen-companion-mode 1)
    (qwen-companion-test-wait-for (eq 'ready (qwen-companion-state)))
    (let ((process (qwen-companion-test-process)))
      (cl-letf (((symbol-function 'qwen-companion-roots-published)
                 (lambda () (list (directory-file-name default-directory)))))
        (dolist (char (list (unibyte-char-to-multibyte #xe9) #xd800))
          (with-current-buffer (find-file-noselect (concat default-directory "caf" (string char)))
            (insert "text\n")
            (save-buffer)
            (should (qwen-companion-changes-signs-path (current-buffer)))
            (kill-buffer))))
      (should (qwen-companion-journal-await 'journal-busy '(:paths ("/a"))))
      (should (eq process (qwen-companion-test-process))))))

(ert-deftest qwen-companion-changes-test-a-file-with-a-name-in-bytes-goes ()
  "A turn loses a file that it has not changed in the end, whatever its name."
  (qwen-companion-changes-test-with nil
    (qwen-companion-changes-test-turn "one" '(("a.txt" "a\n")))
    (let ((file (concat default-directory "caf\351")))
      (cl-flet ((told (&rest keys)
                  (qwen-companion-journal-on-turns
                   (list :turns (list `(:id "x" :root ,default-directory :who agent ,@keys))))
                  (mapcar #'qwen-companion-changed-file-path
                          (qwen-companion-turn-files (qwen-companion-journal-turn "x")))))
        ;; As the Lisp reader gives it, and as Emacs has it.
        (should (equal (list (string-to-multibyte file))
                       (told :files `((:path ,file :kind modified)))))
        (should-not (told :files-gone (list file)))))))

(provide 'qwen-companion-changes-test)
;;; qwen-companion-changes-test.el ends here
