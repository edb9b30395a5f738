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
    (qwen-companion-changes-test-turn "two" '(("b/new.txt" "x\n") ("a.txt" nil)))
    (qwen-companion-changes-test-settle)
    (let ((text (qwen-companion-changes-test-text)))
      (should (string-match-p "Prompt of two\\(.\\|\n\\)*Prompt of one" text))
      (should (string-match-p "+1 -1 +1 file +Qwen Code +Prompt of one" text))
      (should (string-search "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n" text)))
    ;; The newer one is folded: only the newest at the opening is not.
    (should-not (string-search "new.txt" (qwen-companion-changes-test-text)))
    (qwen-companion-changes-test-goto "Prompt of two")
    (qwen-companion-changes-test-press "TAB")
    (should (string-match-p "b/new.txt  new" (qwen-companion-changes-test-text)))
    (should (string-match-p "a.txt  deleted" (qwen-companion-changes-test-text)))
    (qwen-companion-changes-test-press "TAB")
    (should-not (string-search "new.txt" (qwen-companion-changes-test-text)))))

(ert-deftest qwen-companion-changes-test-undoes-a-hunk-and-brings-it-back ()
  (qwen-companion-changes-test--with-hunks
    (let ((after (qwen-companion-changes-test-bytes "a.txt")))
      (qwen-companion-changes-test-press "n" "k")
      (should (equal (qwen-companion-changes-test--new 5 "five" 35 nil)
                     (qwen-companion-changes-test-bytes "a.txt")))
      (should (looking-at "@@ -17,7 \\+17,7 @@ undone, u brings it back\n"))
      (pcase-let ((`(,wrote) (qwen-companion-test-sent 'journal-wrote)))
        (should (equal (list (expand-file-name "a.txt")) (plist-get wrote :paths)))
        (should (equal "one" (plist-get wrote :undo-of)))
        (should (equal "Undo 1 change of a.txt" (plist-get wrote :label))))
      (should-error (qwen-companion-changes-test-press "k") :type 'user-error)
      ;; Also after it was told of the undo, and looked at the file again.
      (qwen-companion-changes-test-settle)
      (should (looking-at "@@ -17,7 \\+17,7 @@ undone, u brings it back\n"))
      (qwen-companion-changes-test-press "u")
      (should (equal after (qwen-companion-changes-test-bytes "a.txt")))
      (should (looking-at "@@ -17,7 \\+17,7 @@\n"))
      (should-error (qwen-companion-changes-test-press "u") :type 'user-error))))

(ert-deftest qwen-companion-changes-test-undoes-in-a-visiting-buffer ()
  "The buffer changes in one undo step, and is saved if it was."
  (qwen-companion-changes-test--with-hunks
    (let ((buffer (find-file-noselect "a.txt")))
      (with-current-buffer buffer
        (goto-char (point-min))
        (search-forward "twenty"))
      (qwen-companion-changes-test-press "k")
      (should-not (buffer-modified-p buffer))
      (should (equal (qwen-companion-changes-test--new 20 "twenty" 35 nil)
                     (qwen-companion-changes-test-bytes "a.txt")))
      (with-current-buffer buffer
        (should (equal (qwen-companion-changes-test--new 20 "twenty" 35 nil)
                       (buffer-string)))
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
      (should (string-match-p "not saved"
                              (qwen-companion-test-messages
                                (qwen-companion-changes-test-press "k"))))
      (should (equal disk (qwen-companion-changes-test-bytes "a.txt")))
      (with-current-buffer buffer
        (should (buffer-modified-p))
        (should (equal (concat "mine\n" (qwen-companion-changes-test--new 20 "twenty" 35 nil))
                       (buffer-string)))))))

(ert-deftest qwen-companion-changes-test-keeps-later-edits ()
  (qwen-companion-changes-test--with-hunks
    (qwen-companion-changes-test-write
     "a.txt" (qwen-companion-changes-test--new 1 "later" 5 "five" 20 "twenty" 35 nil 40 "end"))
    (qwen-companion-changes-test-press "k")
    (should (equal (qwen-companion-changes-test--new 1 "later" 20 "twenty" 35 nil 40 "end")
                   (qwen-companion-changes-test-bytes "a.txt")))))

(ert-deftest qwen-companion-changes-test-conflict-writes-nothing ()
  (qwen-companion-changes-test--with-hunks
    (let ((text (qwen-companion-changes-test--new 5 "mine" 20 "twenty" 35 nil)))
      (qwen-companion-changes-test-write "a.txt" text)
      (should (string-match-p "1 conflict.*nothing written"
                              (qwen-companion-test-messages
                                (qwen-companion-changes-test-press "k"))))
      (should (equal text (qwen-companion-changes-test-bytes "a.txt")))
      (should-not (qwen-companion-test-sent 'journal-wrote))
      (with-current-buffer (find-buffer-visiting "a.txt")
        (should (buffer-modified-p))
        (should (string-search "<<<<<<< yours\nmine\n||||||| before\nfive\n=======\n5\n>>>>>>> undone\n"
                               (buffer-string)))
        (should (qwen-companion-conflicts-p))
        (should (string-match-p
                 "1 conflict with what was undone"
                 (cadr (should-error (basic-save-buffer) :type 'user-error))))
        (set-buffer-modified-p nil)))))

(ert-deftest qwen-companion-changes-test-undoes-the-lines-of-the-region ()
  (qwen-companion-changes-test-with '(("a.txt" "a\nb\nc\nd\n"))
    (qwen-companion-changes-test-turn "one" '(("a.txt" "a\nB\nX\nY\nC\nd\n")))
    (qwen-companion-changes-test-open)
    (qwen-companion-changes-test-unfold "a.txt")
    (let ((transient-mark-mode t))
      (qwen-companion-changes-test-goto "+X")
      (set-mark (point))
      (forward-line 2)
      (activate-mark)
      (qwen-companion-changes-test-press "k"))
    (should (equal "a\nB\nC\nd\n" (qwen-companion-changes-test-bytes "a.txt")))
    (qwen-companion-changes-test-settle)
    (qwen-companion-changes-test-goto "undone, u brings it back")
    (qwen-companion-changes-test-press "u")
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
        (qwen-companion-changes-test-goto "a.bin")
        (qwen-companion-changes-test-press "k")
        (should (equal bytes (qwen-companion-changes-test-bytes path)))
        (qwen-companion-changes-test-press "u")
        (should (equal "x\nB\n" (qwen-companion-changes-test-bytes path)))))))

(ert-deftest qwen-companion-changes-test-merges-bytes ()
  "A file with CR LF in Latin-1 that nobody visits keeps them in a merge."
  (qwen-companion-changes-test-with nil
    (let* ((path (expand-file-name "a.txt"))
           (line (lambda (text) (concat text "\r\n")))
           (lines (lambda (&rest texts)
                    (string-to-unibyte (mapconcat line texts "")))))
      (qwen-companion-changes-test-write path (funcall lines "\xe4" "b" "c" "d" "e" "f"))
      (qwen-companion-changes-test-turn "one" nil)
      (let ((before (qwen-companion-changes-test-bytes path))
            (after (funcall lines "\xe4" "b" "c" "d" "e" "F")))
        (qwen-companion-changes-test-write path (funcall lines "\xf6" "b" "c" "d" "e" "F"))
        (puthash (cons "one" path) (cons before after) qwen-companion-changes-test-texts)
        (qwen-companion-changes-test-add
         (plist-put (copy-sequence (car qwen-companion-changes-test-turns)) :files
                    (list (list :path path :kind 'modified :added 1 :deleted 1)))))
      (qwen-companion-changes-test-open)
      (qwen-companion-changes-test-goto "a.txt")
      (qwen-companion-changes-test-press "k")
      (should (equal (funcall lines "\xf6" "b" "c" "d" "e" "f")
                     (qwen-companion-changes-test-bytes path))))))

(ert-deftest qwen-companion-changes-test-undoes-a-turn ()
  "Files made, deleted and renamed; it says first what it will do, once."
  (qwen-companion-changes-test-with '(("edited" "1\n2\n3\n") ("gone" "g\n") ("old" "o\n"))
    (qwen-companion-changes-test-turn
     "one" '(("edited" "1\nX\n3\n") ("made" "m\n") ("gone" nil) ("new" "o\n" :from "old")))
    (qwen-companion-changes-test-open)
    (qwen-companion-changes-test-goto "Prompt of one")
    (let (questions)
      (cl-letf (((symbol-function 'y-or-n-p)
                 (lambda (question) (push question questions) t)))
        (qwen-companion-changes-test-press "k")
        (should (equal '("Undo \"Prompt of one\": change back edited, delete made, make again gone, rename back new? ")
                       questions))
        (should (equal '("1\n2\n3\n" nil "g\n" "o\n" nil)
                       (mapcar #'qwen-companion-changes-test-bytes
                               '("edited" "made" "gone" "old" "new"))))
        ;; It is a turn of its own, which can be undone.
        (qwen-companion-changes-test-settle)
        (qwen-companion-changes-test-goto "Undo \"Prompt of one\"")
        (should (string-match-p "you  Undo" (buffer-substring (point) (line-end-position))))
        (setq questions nil)
        (qwen-companion-changes-test-press "k")
        (should (= 1 (length questions)))
        (should (equal '("1\nX\n3\n" "m\n" nil nil "o\n")
                       (mapcar #'qwen-companion-changes-test-bytes
                               '("edited" "made" "gone" "old" "new"))))))))

(ert-deftest qwen-companion-changes-test-saying-no-changes-nothing ()
  (qwen-companion-changes-test-with nil
    (qwen-companion-changes-test-turn "one" '(("made" "m\n")))
    (qwen-companion-changes-test-open)
    (dolist (place '("made" "Prompt of one"))
      (qwen-companion-changes-test-goto place)
      (cl-letf (((symbol-function 'y-or-n-p) #'ignore))
        (should (eq 'quit (condition-case nil
                              (qwen-companion-changes-test-press "k")
                            (quit 'quit)))))
      (should (file-exists-p "made")))))

(provide 'qwen-companion-changes-test)
;;; qwen-companion-changes-test.el ends here
