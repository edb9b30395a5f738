;;; qwen-companion-review-unified-test.el --- Tests of reviews hunk by hunk  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(defvar qwen-companion-review-unified-test-answers nil
  "Functions that answer the comparisons asked for, newest first.
The symbol `now' means that they are answered at once.")

(defmacro qwen-companion-review-unified-test-with (files &rest body)
  "Run BODY with FILES, a connected companion and an orderly frame.
Texts are compared at once, see `qwen-companion-review-unified-test-answers'."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-reviews ,files
     (let ((qwen-companion-diff-style 'unified)
           (qwen-companion-review-unified-test-answers 'now))
       (cl-letf (((symbol-function 'qwen-companion-merge-compare)
                  (lambda (&rest arguments)
                    (if (eq 'now qwen-companion-review-unified-test-answers)
                        (apply #'qwen-companion-test-compare-now arguments)
                      (push (lambda () (apply #'qwen-companion-test-compare-now arguments))
                            qwen-companion-review-unified-test-answers)))))
         ,@body))))

(defun qwen-companion-review-unified-test--review (text &optional file)
  "Let a CLI propose TEXT for FILE, by default a.txt; go to the review.
Return the proposal."
  (let ((proposal (qwen-companion-test-propose (or file "a.txt") text)))
    (qwen-companion-diff-open proposal)
    (set-buffer (window-buffer))
    (should (derived-mode-p 'qwen-companion-unified-mode 'diff-mode))
    proposal))

(defmacro qwen-companion-review-unified-test-with-review (old new &rest body)
  "Run BODY in the review of `proposal': NEW for a.txt, which has OLD or is new."
  (declare (indent 2) (debug t))
  `(qwen-companion-review-unified-test-with
       (let ((old ,old)) (and old (list (list "a.txt" old))))
     (let ((proposal (qwen-companion-review-unified-test--review ,new)))
       (ignore proposal)
       ,@body)))

(defun qwen-companion-review-unified-test--body ()
  "Return the visible text below the header of the file."
  (save-excursion
    (goto-char (point-min))
    (forward-line 2)
    (buffer-substring-no-properties (point) (point-max))))

(defun qwen-companion-review-unified-test--count ()
  "Return the header line's text about the hunks, which may be shorter there."
  (should (string-search (replace-regexp-in-string " hunk.*" ""
                                                   qwen-companion-review-unified--status)
                         (qwen-companion-test-header)))
  qwen-companion-review-unified--status)

(defconst qwen-companion-review-unified-test--old
  (mapconcat #'number-to-string (number-sequence 1 40) "\n")
  "Forty lines, the last one without an end.")

(defun qwen-companion-review-unified-test--new (&rest changes)
  "Return the text of forty lines with CHANGES: number and text of each line.
A text that is nil removes the line."
  (let ((lines (split-string qwen-companion-review-unified-test--old "\n")))
    (cl-loop for (number text) on changes by #'cddr
             do (setf (nth (1- number) lines) text))
    (mapconcat #'identity (delq nil lines) "\n")))

(defmacro qwen-companion-review-unified-test-with-three (&rest body)
  "Run BODY in a review of three hunks, at lines 5, 20 and 35; `proposal'."
  (declare (indent 0) (debug t))
  `(qwen-companion-review-unified-test-with-review qwen-companion-review-unified-test--old (qwen-companion-review-unified-test--new 5 "five" 20 "twenty" 35 nil)
     ,@body))

(ert-deftest qwen-companion-review-unified-test-its-help-goes-with-it ()
  "In a low frame, the help of its keys takes the window of the terminal."
  (qwen-companion-review-unified-test-with '(("a.txt" "one\n"))
    (set-frame-size (selected-frame) 80 23)
    (split-window-below)
    (other-window 1)
    (let ((before (qwen-companion-test-shown)))
      (qwen-companion-test-show (qwen-companion-test-propose "a.txt" "two\n"))
      (select-window (get-buffer-window "*qwen-companion hunks: a.txt*"))
      (set-buffer (window-buffer))
      (qwen-companion-test-press "?")
      (should (equal '("*qwen-companion hunks: a.txt*" "*Help*") (qwen-companion-test-shown)))
      (qwen-companion-test-press "q")
      (should (equal before (qwen-companion-test-shown))))))

(ert-deftest qwen-companion-review-unified-test-shows-a-diff ()
  "Of changed, new and emptied files, with and without an end of the last line."
  (pcase-dolist (`(,old ,new ,shown)
                 '(("one\ntwo\nthree\n" "one\nTWO\nthree\n"
                    "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n")
                   (nil "a\nb\n" "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1,2 @@\n+a\n+b\n")
                   ("a\nb\n" "" "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +0,0 @@\n-a\n-b\n")
                   ("a\nb" "a\nb\n" "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n")
                   ("a\nb\nc" "A\nb\nc" "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n-a\n+A\n b\n c\n\\ No newline at end of file\n")
                   ("a\n" "a\n" "--- a/a.txt\n+++ b/a.txt\nNo differences left.\n")))
    (qwen-companion-review-unified-test-with-review old new
      (should (equal shown (buffer-string)))
      (should (equal (not (equal old new)) (looking-at "@@ ")))
      (should buffer-read-only))))

(ert-deftest qwen-companion-review-unified-test-drop-and-bring-back ()
  (qwen-companion-review-unified-test-with-three
    (should (equal "3 of 3 hunks kept" (qwen-companion-review-unified-test--count)))
    (let ((before (buffer-string)))
      (qwen-companion-test-press "n" "k")
      (should (equal "2 of 3 hunks kept" (qwen-companion-review-unified-test--count)))
      (should (looking-at "@@ -17,7 \\+17,7 @@ dropped, u restores it\n"))
      (should (equal (qwen-companion-review-unified-test--new 5 "five" 35 nil)
                     (qwen-companion-proposal-text proposal)))
      ;; Said in text, and to be seen.
      (should (search-forward "+twenty" nil t))
      (should (eq 'qwen-companion-unified-dropped (get-text-property (1- (point)) 'face)))
      (should (qwen-companion-proposal-edited-p proposal))
      (should-error (qwen-companion-test-press "k") :type 'user-error)
      (qwen-companion-test-press "u")
      (should (equal before (buffer-string)))
      (should (equal "3 of 3 hunks kept" (qwen-companion-review-unified-test--count)))
      (should (equal (qwen-companion-review-unified-test--new 5 "five" 20 "twenty" 35 nil)
                     (qwen-companion-proposal-text proposal)))
      (should-not (qwen-companion-proposal-edited-p proposal))
      (should-error (qwen-companion-test-press "u") :type 'user-error))))

(defmacro qwen-companion-review-unified-test-with-joined (&rest body)
  "Run BODY in a review of one hunk with changes at 2, 5 and 8; `proposal'."
  (declare (indent 0) (debug t))
  `(qwen-companion-review-unified-test-with-review "1\n2\n3\n4\n5\n6\n7\n8\n9\n" "1\nTWO\n3\n4\nFIVE\n6\n7\nEIGHT\n9\n"
     (cl-flet ((text () (string-replace "\n" "" (qwen-companion-proposal-text proposal))))
       (should (equal "1 of 1 hunk kept" (qwen-companion-review-unified-test--count)))
       ,@body)))

(ert-deftest qwen-companion-review-unified-test-one-change-of-a-joined-hunk ()
  "Three lines between changes join them; a key on one is about that one."
  (qwen-companion-review-unified-test-with-joined
    (dolist (key '("k" "x"))
      (qwen-companion-test-go-to "+FIVE")
      (qwen-companion-test-press key)
      (should (equal "1TWO34567EIGHT9" (text)))
      (should (looking-at "@@ .* dropped"))
      (search-forward "+FIVE")
      (qwen-companion-test-press "u")
      (should (equal "1 of 1 hunk kept" (qwen-companion-review-unified-test--count)))
      (should (equal "1TWO34FIVE67EIGHT9" (text))))
    ;; On the head, or by `K', the whole hunk.
    (qwen-companion-test-press "g")
    (search-forward "+FIVE")
    (qwen-companion-test-press "K")
    (should (equal "123456789" (text)))
    (should (looking-at "@@ "))
    (qwen-companion-test-press "u")
    (should (equal "1TWO34FIVE67EIGHT9" (text)))
    (search-forward "+FIVE")
    (qwen-companion-test-press "o")
    (should (equal "1234FIVE6789" (text)))
    (should-error (qwen-companion-test-press "o") :type 'user-error)
    (should (looking-at "@@ "))))

(ert-deftest qwen-companion-review-unified-test-a-region ()
  "All changes that have lines in it are dropped, and brought back."
  (qwen-companion-review-unified-test-with-joined
    (let ((transient-mark-mode t))
      (dolist (step '(("k" . "1TWO3456789") ("u" . "1TWO34FIVE67EIGHT9")))
        (qwen-companion-test-go-to "\n+FIVE")
        (push-mark (line-beginning-position) t t)
        (search-forward "\n-8\n")
        (qwen-companion-test-press (car step))
        (should (equal (cdr step) (text)))
        (should-not mark-active))
      (goto-char (point-min))
      (push-mark (line-beginning-position 2) t t)
      (should-error (qwen-companion-test-press "k") :type 'user-error))))

(ert-deftest qwen-companion-review-unified-test-undo ()
  "Every step in the review can be undone, one after the other."
  (qwen-companion-review-unified-test-with-joined
    (let (seen)
      (cl-flet ((do (line &rest keys)
                  (push (cons (text) (qwen-companion-review-unified-test--count)) seen)
                  (qwen-companion-test-go-to line)
                  (apply #'qwen-companion-test-press keys)))
        (do "+FIVE" "k")
        (do "+FIVE" "u")
        (do "+FIVE" "s")
        (do "+TWO" "K")
        (do "+EIGHT" "e")
        (qwen-companion-test-go-to "EIGHT")
        (insert "een\nnineteen")
        (qwen-companion-test-press "C-c C-c")
        (should (equal "12345FIVE67EIGHTeennineteen9" (string-replace "34FIVE" "345FIVE" (text))))
        (dolist (before seen)
          (qwen-companion-test-press "C-/")
          (should (equal before (cons (text) (qwen-companion-review-unified-test--count)))))
        (should-error (qwen-companion-test-press "C-/") :type 'user-error)
        (qwen-companion-test-press "g")))
    ;; An edit alone, undone, was none.
    (with-current-buffer (qwen-companion-proposal-buffer proposal) (set-buffer-modified-p nil))
    (qwen-companion-test-press "e")
    (insert "mine")
    (qwen-companion-test-press "C-c C-c")
    (should (qwen-companion-proposal-edited-p proposal))
    (qwen-companion-test-press "C-/")
    (should-not (qwen-companion-proposal-edited-p proposal))))

(ert-deftest qwen-companion-review-unified-test-undo-spares-changed-text ()
  "A step is not undone where something else has changed the text meanwhile."
  (qwen-companion-review-unified-test-with-joined
    (qwen-companion-test-press "e")
    (goto-char (point-min))
    (insert "mine")
    (qwen-companion-test-press "C-c C-c")
    (qwen-companion-test-editing proposal
      (goto-char (point-min))
      (insert "other\n"))
    (qwen-companion-test-press "g")
    (should-error (qwen-companion-test-press "C-/") :type 'user-error)
    (should (equal "othermine1TWO34FIVE67EIGHT9" (text)))
    ;; After the file has changed too, its lines are other ones.
    (qwen-companion-test-press "k")
    (write-region "1\n2\n3\n" nil "a.txt" nil 'silent)
    (qwen-companion-review-file-written (expand-file-name "a.txt"))
    (should-error (qwen-companion-test-press "C-/") :type 'user-error)))

(ert-deftest qwen-companion-review-unified-test-hunks-name-their-function ()
  "The major mode names it if that is cheap; otherwise git's rule does."
  (qwen-companion-review-unified-test-with
      '(("a.el" "(defun one ()\n  \"Text.\"\n  1)\n")
        ("b.txt" "One\n two\n")
        ("c.txt" "Subject: one\n two\n"))
    (qwen-companion-review-unified-test--review "(defun one ()\n  \"Text.\"\n  2)\n" "a.el")
    (should (looking-at "@@ -1,3 \\+1,3 @@ one$"))
    (qwen-companion-test-press "k")
    (should (looking-at "@@ -1,3 \\+1,3 @@ one dropped, u restores it$"))
    (qwen-companion-diff-reject)
    (let ((qwen-companion-review-unified--mode-seconds 0))
      (qwen-companion-review-unified-test--review "(defun one ()\n  \"Text.\"\n  2)\n" "a.el"))
    (should (looking-at "@@ -1,3 \\+1,3 @@"))
    (qwen-companion-diff-reject)
    ;; There are no functions in it.
    (pcase-dolist (`(,text ,file) '(("One\n 2\n" "b.txt") ("Subject: one\n 2\n" "c.txt")))
      (qwen-companion-review-unified-test--review text file)
      (should (looking-at "@@ -1,2 \\+1,2 @@$"))
      (qwen-companion-diff-reject))))

(ert-deftest qwen-companion-review-unified-test-in-words ()
  "Each sign has its meaning as help, and a hunk can be read as a sentence."
  (qwen-companion-review-unified-test-with-joined
    (pcase-dolist (`(,line ,words) '((" 1" "Unchanged") ("-2" "Removed") ("+TWO" "Added")))
      (qwen-companion-test-go-to (concat "\n" line))
      (should (string-prefix-p words (get-text-property (line-beginning-position) 'help-echo))))
    (qwen-companion-test-said "Hunk 1 of 1, kept\\.  Line 2, removed: 2; added: TWO\\.  Line 5, removed: 5; added: FIVE\\."
      (qwen-companion-test-press "."))
    (qwen-companion-test-press "K")
    (qwen-companion-test-go-to "+TWO")
    (should (string-search "Dropped" (get-text-property (line-beginning-position) 'help-echo)))
    (qwen-companion-test-said (regexp-quote "Hunk 1 of 1, dropped.")
      (qwen-companion-test-press "."))))

(ert-deftest qwen-companion-review-unified-test-keys-are-told ()
  "Ours come first, those that are in the header can be clicked."
  (qwen-companion-review-unified-test-with-joined
    (save-window-excursion
      (qwen-companion-test-press "?")
      (with-current-buffer (help-buffer)
        (goto-char (point-min))
        (should (looking-at "C-c C-c +Accept a proposal"))
        (should (search-forward-regexp "^x, k\\|^k, x" nil t))
        ;; Not cut inside a word in a narrow window; what continues is below its beginning.
        (should word-wrap)
        (qwen-companion-test-go-to "Go to the next hunk")
        (should (equal wrap-prefix (make-string (save-excursion (goto-char (match-beginning 0)) (current-column)) ?\s)))
        (kill-buffer)))
    (let* ((header (qwen-companion-test-header))
           (key (lookup-key (get-text-property (string-search "drop" header) 'keymap header)
                            [header-line mouse-1])))
      (search-forward "+FIVE")
      (funcall-interactively key (list 'mouse-1 (list (selected-window) 'header-line '(0 . 0) 0)))
      (should (equal "1TWO34567EIGHT9" (text))))))

(ert-deftest qwen-companion-review-unified-test-from-file-to-file ()
  "Reviews of one CLI belong together; one key accepts and goes on."
  (qwen-companion-review-unified-test-with
      '(("a.txt" "one\n") ("b.txt" "one\n") ("c.txt" "one\n"))
    (dolist (proposed '(("a.txt" "s") ("b.txt" "other") ("c.txt" "s")))
      (qwen-companion-test-propose (car proposed) "two\n" :session (cadr proposed)))
    (qwen-companion-diff-open "a.txt")
    (cl-flet ((shown () (set-buffer (window-buffer)) (substring (qwen-companion-test-header) 1 6)))
      (should (equal "a.txt" (shown)))
      (should (string-search "  1 of 2  " (qwen-companion-test-header)))
      (pcase-dolist (`(,key ,file) '(("M-n" "c.txt") ("]" "b.txt") ("]" "a.txt")
                                     ("M-p" "b.txt") ("[" "c.txt") ("[" "a.txt")))
        (qwen-companion-test-press key)
        (should (equal (list key file) (list key (shown)))))
      (qwen-companion-test-press "A")
      (should (equal "c.txt" (shown)))
      (should-not (string-search " of 2  " (qwen-companion-test-header)))
      (qwen-companion-test-press "C-c C-n")
      (should (equal "b.txt" (shown)))
      (qwen-companion-test-press "A")
      (should-not (qwen-companion-proposals))
      (should (equal '(accepted accepted accepted)
                     (mapcar #'car (qwen-companion-test-outcomes)))))))

(defun qwen-companion-review-unified-test--sessions (activity)
  "Let both CLIs be connected, with that of \"s\" doing ACTIVITY, nil if unknown."
  (with-current-buffer "*terminal*" (setq qwen-companion-terminal-directory default-directory))
  (qwen-companion-test-set-sessions (list (list :id "s" :client "qwen" :state (list :activity activity))
                                          (list :id "other" :client "gemini" :state (list :activity 'working))))
  (qwen-companion-review-sessions-changed))

(ert-deftest qwen-companion-review-unified-test-waits-for-the-next-of-the-turn ()
  "It comes selected in the same place and style; no key reaches the terminal."
  (qwen-companion-review-unified-test-with
      '(("a.txt" "one\n") ("b.txt" "one\n") ("c.txt" "one\n") ("d.txt" "one\n"))
    (let ((qwen-companion-diff-arrival 'now)
          (qwen-companion-diff-style 'ediff)
          place)
      (cl-flet ((propose (file session) (qwen-companion-test-propose file "two\n" :session session))
                (selected () (qwen-companion-test-selected))
                (tick () (qwen-companion-test-show-next)))
        (qwen-companion-review-unified-test--sessions 'asking)
        (split-window-right)
        (propose "a.txt" "s")
        (qwen-companion-review)
        (qwen-companion-diff-switch)
        (setq place (window-edges))
        (qwen-companion-test-press "A")
        (should (equal "*qwen-companion next: a.txt*" (selected)))
        (should (equal place (window-edges)))
        (should (get-buffer-window "*terminal*"))
        (should (string-search "The next change by qwen will appear here"
                               (qwen-companion-test-buffer-text (window-buffer))))
        ;; That of another CLI waits, and so does the key.
        (propose "b.txt" "other")
        (tick)
        (qwen-companion-test-press "A")
        (should (equal "*qwen-companion next: a.txt*" (selected)))
        (qwen-companion-test-silent (qwen-companion-review-unified-test--sessions 'working))
        (propose "c.txt" "s")
        (tick)
        (should (equal "*qwen-companion hunks: c.txt*" (selected)))
        (should (equal place (window-edges)))
        (should-not (get-buffer "*qwen-companion next: a.txt*"))
        ;; The style holds also after another key, until the turn has ended.
        (qwen-companion-diff-bury)
        (qwen-companion-diff-reject "b.txt")
        (should (equal "*terminal*" (selected)))
        (qwen-companion-diff-reject "c.txt")
        (propose "a.txt" "s")
        (qwen-companion-review)
        (should (equal "*qwen-companion hunks: a.txt*" (selected)))
        (qwen-companion-test-press "A")
        (qwen-companion-test-said "qwen has ended its turn, no more proposals"
          (qwen-companion-review-unified-test--sessions 'idle))
        (should (equal "*terminal*" (selected)))
        (should (= 2 (length (window-list))))
        (propose "a.txt" "s")
        (qwen-companion-review)
        (should (equal "*Ediff Control Panel*" (selected)))
        ;; Nothing is awaited of a CLI that does nothing.
        (qwen-companion-test-press "C-c C-n")
        (should (equal "*terminal*" (selected)))))))

(ert-deftest qwen-companion-review-unified-test-waiting-ends ()
  "By its key, by going elsewhere, with its buffer, after a while, with the mode."
  (qwen-companion-review-unified-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
    (dolist (end (list (lambda () (qwen-companion-test-press "q"))
                       (lambda () (kill-buffer (window-buffer)))
                       (lambda ()
                         (qwen-companion-test-set-clock 6)
                         (qwen-companion-test-wait-for
                          (equal "*terminal*" (qwen-companion-test-selected))))
                       (lambda ()
                         (let ((qwen-companion-diff-arrival 'now))
                           (other-window 1)
                           (qwen-companion-test-propose "b.txt" "two\n" :session "s")
                           (qwen-companion-test-show-next)
                           (qwen-companion-test-show-next)
                           ;; As by itself: what was selected is still.
                           (should (get-buffer-window "*qwen-companion hunks: b.txt*"))
                           (should (equal "*terminal*" (qwen-companion-test-selected)))
                           (qwen-companion-diff-reject "b.txt")))))
      (qwen-companion-review-unified-test--sessions nil)
      (qwen-companion-test-propose "a.txt" "two\n" :session "s")
      (qwen-companion-diff-open)
      (qwen-companion-test-press "A")
      (should (equal "*qwen-companion next: a.txt*" (qwen-companion-test-selected)))
      (should (get-buffer-window "*terminal*"))
      (funcall end)
      (should-not qwen-companion-review--awaiting-next)
      (should-not (get-buffer "*qwen-companion next: a.txt*"))
      (should (equal "*terminal*" (qwen-companion-test-selected)))
      (should (= 1 (length (window-list)))))))

(ert-deftest qwen-companion-review-unified-test-accept-what-remains ()
  (qwen-companion-review-unified-test-with-three
    (qwen-companion-test-press "k" "C-c C-c")
    (should-not (qwen-companion-proposals))
    (should (equal (list :outcome 'accepted
                         :text (qwen-companion-review-unified-test--new 20 "twenty" 35 nil))
                   (cddr (car (qwen-companion-test-sent 'outcome)))))
    (should-not (buffer-live-p (qwen-companion-proposal-buffer proposal)))))

(ert-deftest qwen-companion-review-unified-test-put-aside-and-rejected ()
  "By its key or by killing the view; it comes back with the dropped hunks."
  (dolist (aside (list (lambda () (qwen-companion-test-press "q")) #'kill-buffer))
    (qwen-companion-review-unified-test-with-three
      (qwen-companion-test-press "k")
      (funcall aside)
      (should (equal (list proposal) (qwen-companion-proposals)))
      (should (eq 'pending (qwen-companion-proposal-state proposal)))
      (should (equal '("*terminal*") (qwen-companion-test-shown)))
      (qwen-companion-diff-open)
      (set-buffer (window-buffer))
      (should (equal "2 of 3 hunks kept" (qwen-companion-review-unified-test--count)))
      (qwen-companion-test-press "C-c C-k")
      (should (equal '(rejected) (mapcar #'car (qwen-companion-test-outcomes)))))))

(ert-deftest qwen-companion-review-unified-test-next-and-previous ()
  (qwen-companion-review-unified-test-with-three
    (should (looking-at "@@ -2,"))
    (qwen-companion-test-press "n" "n")
    (should-error (qwen-companion-test-press "n") :type 'user-error)
    (should (looking-at "@@ -32,"))
    (qwen-companion-test-press "p")
    (should (looking-at "@@ -17,"))
    ;; From inside a hunk.
    (forward-line 3)
    (qwen-companion-test-press "p")
    (should (looking-at "@@ -2,"))
    (should-error (qwen-companion-test-press "p") :type 'user-error)
    (should (equal (qwen-companion-review-unified-test--new 5 "five" 20 "twenty" 35 nil)
                   (qwen-companion-proposal-text proposal)))))

(ert-deftest qwen-companion-review-unified-test-a-low-window-begins-at-the-change ()
  "A window too low for the lines before a change begins at the change."
  (let ((begin (lambda ()
                 (should (eql (point) (window-point)))
                 (save-excursion
                   (goto-char (window-start))
                   (buffer-substring (point) (line-end-position))))))
    (qwen-companion-review-unified-test-with-three
      (split-window nil 8 'below)
      (qwen-companion-test-press "n" "n")
      (should (equal "-35" (funcall begin)))
      (qwen-companion-test-press "p")
      (should (equal "-20" (funcall begin)))
      (qwen-companion-test-press "g")
      (should (equal "-20" (funcall begin)))
      (qwen-companion-test-press "k")
      (should (equal (qwen-companion-review-unified-test--new 5 "five" 35 nil)
                     (qwen-companion-proposal-text proposal))))))

(ert-deftest qwen-companion-review-unified-test-context ()
  "More context joins hunks, less divides them; dropped hunks stay dropped."
  (let ((text "1\nTWO\n3\n4\n5\n6\n7\nEIGHT\n9\n"))
    (qwen-companion-review-unified-test-with-review "1\n2\n3\n4\n5\n6\n7\n8\n9\n" text
      (should (equal "1 of 1 hunk kept" (qwen-companion-review-unified-test--count)))
      (qwen-companion-test-press "-")
      (should (equal "2 of 2 hunks kept" (qwen-companion-review-unified-test--count)))
      (qwen-companion-test-press "k" "+")
      (should (equal "1 of 2 hunks kept" (qwen-companion-review-unified-test--count)))
      (should (equal "@@ -1,5 +1,5 @@ dropped, u restores it\n 1\n-2\n+TWO\n 3\n 4\n 5\n@@ -6,4 +6,4 @@\n 6\n 7\n-8\n+EIGHT\n 9\n"
                     (qwen-companion-review-unified-test--body)))
      (qwen-companion-test-press "u" "g")
      (should (equal text (qwen-companion-proposal-text proposal)))
      (let ((current-prefix-arg 3))
        (qwen-companion-test-press "-"))
      (should (equal "@@ -2,1 +2,1 @@\n-2\n+TWO\n@@ -8,1 +8,1 @@\n-8\n+EIGHT\n"
                     (qwen-companion-review-unified-test--body))))))

(ert-deftest qwen-companion-review-unified-test-split-between-changes ()
  (qwen-companion-review-unified-test-with-review "1\n2\n3\n4\n5\n6\n" "1\nTWO\n3\n4\nFIVE\n6\n"
    (should-error (qwen-companion-test-press "s") :type 'user-error)
    (search-forward "\n 4")
    (qwen-companion-test-press "s")
    (should (equal "2 of 2 hunks kept" (qwen-companion-review-unified-test--count)))
    (should (equal "@@ -1,3 +1,3 @@\n 1\n-2\n+TWO\n 3\n@@ -4,3 +4,3 @@\n 4\n-5\n+FIVE\n 6\n"
                   (qwen-companion-review-unified-test--body)))
    (should (looking-at "@@ -4"))
    (qwen-companion-test-press "k")
    (should (equal "1\nTWO\n3\n4\n5\n6\n" (qwen-companion-proposal-text proposal)))
    ;; It stays split.
    (qwen-companion-test-press "u" "+")
    (should (equal "2 of 2 hunks kept" (qwen-companion-review-unified-test--count)))))

(ert-deftest qwen-companion-review-unified-test-split-of-a-dropped-hunk ()
  ;; Nowhere that lines would run together.
  (qwen-companion-review-unified-test-with-review "0\na" "0\nA\nB\n"
    (search-forward "\n+A")
    (should-error (qwen-companion-test-press "s") :type 'user-error)
    (should (equal "1 of 1 hunk kept" (qwen-companion-review-unified-test--count))))
  (qwen-companion-review-unified-test-with-review "0\na\nb\n1\n" "0\nA\nB\nC\n1\n"
    (qwen-companion-test-press "k")
    (search-forward "\n+B")
    (qwen-companion-test-press "s" "u")
    (should (equal "1 of 2 hunks kept" (qwen-companion-review-unified-test--count)))
    (should (equal "0\na\nb\nB\nC\n1\n" (qwen-companion-proposal-text proposal)))
    (qwen-companion-test-press "p" "u")
    (should (equal "0\nA\nB\nC\n1\n" (qwen-companion-proposal-text proposal)))))

(ert-deftest qwen-companion-review-unified-test-white-space ()
  "Hunks of it are out of sight, and accepted all the same."
  (let ((text (qwen-companion-review-unified-test--new 5 "  5\t" 20 "twenty")))
    (qwen-companion-review-unified-test-with-review qwen-companion-review-unified-test--old text
      (let ((before (buffer-string)))
        (qwen-companion-test-press "w")
        (should (equal "2 of 2 hunks kept, 1 hidden: only white space" (qwen-companion-review-unified-test--count)))
        (should-not (string-match-p "^-5" (buffer-string)))
        (should (looking-at "@@ -17"))
        (should (equal text (qwen-companion-proposal-text proposal)))
        (qwen-companion-test-press "w")
        (should (equal before (buffer-string)))))))

(ert-deftest qwen-companion-review-unified-test-visit ()
  "The line in the file, or in the proposed text where there is no file."
  (qwen-companion-review-unified-test-with-three
    (pcase-dolist (`(,shown . ,line) '(("\n-20" . "20") ("\n+twenty" . "20")
                                       ("\n 23" . "23") ("\n-35" . "35")))
      (with-selected-window (get-buffer-window "*qwen-companion hunks: a.txt*")
        (qwen-companion-test-go-to shown)
        (save-selected-window
          (qwen-companion-test-press "RET")
          (should (equal "a.txt" (buffer-name)))
          (should (equal line (buffer-substring (line-beginning-position) (line-end-position))))))))
  (qwen-companion-review-unified-test-with nil
    (qwen-companion-review-unified-test--review "a\nb\nc\n")
    (search-forward "+b")
    (qwen-companion-test-press "RET")
    (should (equal "*qwen-companion proposal: a.txt*" (buffer-name)))
    (should (looking-at "b"))))

(ert-deftest qwen-companion-review-unified-test-mouse ()
  "A click visits its line; the context menu acts on the line that is clicked."
  (qwen-companion-review-unified-test-with-three
    (save-window-excursion
      (qwen-companion-test-click 'mouse-2 "+twenty")
      (should (equal "a.txt" (qwen-companion-test-selected)))
      (should (equal 20 (with-current-buffer "a.txt" (line-number-at-pos)))))
    (goto-char (point-min))
    (should (member "Review" (qwen-companion-test-context-menu "+twenty")))
    (qwen-companion-test-press "k")
    (should (equal (qwen-companion-review-unified-test--new 5 "five" 35 nil)
                   (qwen-companion-proposal-text proposal)))
    ;; A region that is selected is what the menu is about.
    (goto-char (point-min))
    (let ((transient-mark-mode t))
      (push-mark (point-max) t t)
      (qwen-companion-test-context-menu "+five")
      (should (bobp)))))

(ert-deftest qwen-companion-review-unified-test-repeat-keys ()
  "After `]' another key accepts and goes on, in `repeat-mode'."
  (qwen-companion-review-unified-test-with
      '(("a.txt" "one\n") ("b.txt" "one\n") ("c.txt" "one\n"))
    (let ((mode (bound-and-true-p repeat-mode)))
      (dolist (file '("a.txt" "b.txt" "c.txt"))
        (qwen-companion-test-propose file "two\n"))
      (qwen-companion-diff-open "a.txt")
      (set-buffer (window-buffer))
      (unwind-protect
          (progn
            (repeat-mode 1)
            (execute-kbd-macro "]y]")
            (should (equal '("a.txt" "c.txt")
                           (mapcar (lambda (proposal)
                                     (file-name-nondirectory
                                      (qwen-companion-proposal-path proposal)))
                                   (qwen-companion-proposals))))
            (should (equal "*qwen-companion hunks: a.txt*" (qwen-companion-test-selected)))
            (execute-kbd-macro "][[")
            (should (equal "*qwen-companion hunks: c.txt*" (qwen-companion-test-selected))))
        (repeat-mode (if mode 1 -1))))))

;;; Under keys of other packages

(defvar meow-global-mode)
(defvar meow-mode-state-list)
(defvar qwen-companion-review-unified-test--meow-normal nil
  "Non-nil where the stand-in for Meow is in its state for editing.")
(defvar qwen-companion-review-unified-test--meow-motion nil
  "Non-nil where the stand-in for Meow is in its motion state.")
(declare-function god-mode-all "ext:god-mode" (&optional arg))
(declare-function meow-global-mode "ext:meow-core" (&optional arg))
(declare-function meow-motion-overwrite-define-key "ext:meow-helpers" (&rest keys))
(declare-function meow-normal-define-key "ext:meow-helpers" (&rest keys))

(defun qwen-companion-review-unified-test--with-meow (function)
  "Call FUNCTION with Meow on, or if that is not installed, with a stand-in.
Its state for editing has the keys n and x, the motion state has k."
  (if (require 'meow nil t)
      (unwind-protect
          (progn
            (meow-normal-define-key '("n" . forward-word) '("x" . forward-line))
            (meow-motion-overwrite-define-key '("k" . previous-line))
            (meow-global-mode 1)
            (funcall function))
        (meow-global-mode -1))
    (let ((meow-global-mode t)
          (meow-mode-state-list '((prog-mode . normal)))
          (normal (make-sparse-keymap))
          (motion (make-sparse-keymap)))
      (define-key normal "n" #'forward-word)
      (define-key normal "x" #'forward-line)
      (define-key motion "k" #'previous-line)
      (let ((emulation-mode-map-alists
             `(((qwen-companion-review-unified-test--meow-normal . ,normal)
                (qwen-companion-review-unified-test--meow-motion . ,motion)))))
        (unwind-protect
            (cl-letf (((symbol-function 'meow-mode)
                       (lambda (&optional _)
                         (let ((motion (eq 'motion (alist-get major-mode meow-mode-state-list))))
                           (setq-local qwen-companion-review-unified-test--meow-motion motion
                                       qwen-companion-review-unified-test--meow-normal (not motion))))))
              (setq-default qwen-companion-review-unified-test--meow-normal t)
              (provide 'meow)
              (funcall function))
          (setq features (delq 'meow features))
          (setq-default qwen-companion-review-unified-test--meow-normal nil))))))

(ert-deftest qwen-companion-review-unified-test-meow ()
  "The keys that the header line shows work; those of the motion state are Meow's."
  (qwen-companion-review-unified-test--with-meow
   (lambda ()
     (qwen-companion-review-unified-test-with-three
       (should (string-search "x/u drop/restore  n/p next/previous" (qwen-companion-test-header)))
       (execute-kbd-macro "nx")
       (set-buffer (window-buffer))
       (should (equal "2 of 3 hunks kept" (qwen-companion-review-unified-test--count)))
       (should (eq #'previous-line (key-binding "k")))))))

(ert-deftest qwen-companion-review-unified-test-god-mode ()
  "It is off in buffers with keys of ours."
  (let ((god (require 'god-mode nil t)))
    (unwind-protect
        (progn
          (when god
            (god-mode-all 1))
          (qwen-companion-review-unified-test-with-three
            (should (eq 'special (get major-mode 'mode-class)))
            (when god
              (god-mode-all 1))
            (execute-kbd-macro "nk")
            (set-buffer (window-buffer))
            (should (equal "2 of 3 hunks kept" (qwen-companion-review-unified-test--count)))))
      (when god
        (god-mode-all -1)))))

(ert-deftest qwen-companion-review-unified-test-edit-a-hunk ()
  (qwen-companion-review-unified-test-with-three
    (qwen-companion-test-press "k" "n" "e")
    (should (equal "*qwen-companion edit: a.txt*" (buffer-name)))
    (should (looking-at-p "twenty$"))
    (should (equal 'text-mode major-mode))
    (should (equal "17\n18\n19\ntwenty\n21\n22\n23\n" (buffer-string)))
    (search-forward "twenty")
    (insert " and\nmore")
    (qwen-companion-test-press "C-c C-c")
    (should (equal "*qwen-companion hunks: a.txt*" (buffer-name)))
    (should (equal (qwen-companion-review-unified-test--new 20 "twenty and\nmore" 35 nil)
                   (qwen-companion-proposal-text proposal)))
    (should (string-match-p "^\\+more$" (buffer-string)))
    (should-not (get-buffer "*qwen-companion edit: a.txt*"))
    ;; The dropped one is still there, and comes back.
    (should (equal "2 of 3 hunks kept" (qwen-companion-review-unified-test--count)))
    (goto-char (point-min))
    (qwen-companion-test-press "n" "u")
    (should (equal (qwen-companion-review-unified-test--new 5 "five" 20 "twenty and\nmore" 35 nil)
                   (qwen-companion-proposal-text proposal)))
    ;; Lines stay apart.
    (qwen-companion-test-press "e")
    (erase-buffer)
    (insert "all")
    (qwen-companion-test-press "C-c C-c")
    (should (string-prefix-p "1\nall\n9\n" (qwen-companion-proposal-text proposal)))))

(ert-deftest qwen-companion-review-unified-test-edit-all-and-drop-the-edit ()
  (qwen-companion-review-unified-test-with-three
    (let ((text (qwen-companion-proposal-text proposal)))
      (let ((current-prefix-arg '(4)))
        (qwen-companion-test-press "e"))
      (should (equal text (buffer-string)))
      (insert "mine\n")
      (qwen-companion-test-press "C-c C-k")
      (should (equal text (qwen-companion-proposal-text proposal)))
      (goto-char (point-min))
      (qwen-companion-test-press "e")
      (insert "mine\n")
      (qwen-companion-test-press "C-c C-c")
      (should (equal (concat "mine\n" text) (qwen-companion-proposal-text proposal))))))

(ert-deftest qwen-companion-review-unified-test-edit-of-lines-that-have-changed ()
  "No text of the edit or of the file is lost."
  (qwen-companion-review-unified-test-with-three
    (qwen-companion-test-press "e")
    (let ((edit (current-buffer)))
      (insert "mine\n")
      (qwen-companion-test-editing proposal
        (goto-char (point-min))
        (forward-line 3)
        (insert "other\n"))
      (should-error (qwen-companion-test-press "C-c C-c") :type 'user-error)
      (should (string-search "\nmine\nfive\n" (qwen-companion-test-buffer-text edit)))
      (should (string-match-p "^other$" (qwen-companion-proposal-text proposal)))
      (let ((current-prefix-arg '(4)))
        (qwen-companion-test-press "C-c C-c"))
      (should (string-match-p "^mine$" (qwen-companion-proposal-text proposal)))
      (should-not (string-match-p "^other$" (qwen-companion-proposal-text proposal))))))

(ert-deftest qwen-companion-review-unified-test-edit-outlives-the-proposal ()
  "A changed edit is kept after the proposal's end; an unchanged one is not."
  (dolist (change '(nil t))
    (qwen-companion-review-unified-test-with-three
      (qwen-companion-test-press "e")
      (let ((edit (current-buffer)))
        (when change
          (insert "mine\n"))
        (qwen-companion-diff-reject proposal)
        (should (eq change (buffer-live-p edit)))
        (when change
          (with-current-buffer edit
            (should-error (qwen-companion-edit-finish) :type 'user-error)
            (should (string-search "\nmine\nfive\n" (buffer-string)))
            (qwen-companion-test-answering nil
              (should-not (kill-buffer)))))))))

(ert-deftest qwen-companion-review-unified-test-to-ediff-and-back ()
  "The same key goes both ways and keeps dropped hunks and edits."
  (qwen-companion-review-unified-test-with-three
    (goto-char (point-min))
    (qwen-companion-test-press "n" "n" "k" "TAB")
    (should (equal "*Ediff Control Panel*" (buffer-name)))
    (qwen-companion-test-editing proposal
      (goto-char (point-min))
      (insert "mine\n"))
    (qwen-companion-test-press "TAB")
    (should (derived-mode-p 'qwen-companion-unified-mode))
    (should-not (get-buffer "*Ediff Control Panel*"))
    (should (equal "2 of 3 hunks kept" (qwen-companion-review-unified-test--count)))
    (qwen-companion-test-go-to "dropped")
    (qwen-companion-test-press "u")
    (should (equal (concat "mine\n" (qwen-companion-review-unified-test--new
                                     5 "five" 20 "twenty" 35 nil))
                   (qwen-companion-proposal-text proposal)))
    ;; This one only: the option is as it was.
    (qwen-companion-test-press "TAB" "q")
    (should (eq 'unified qwen-companion-diff-style))
    (qwen-companion-diff-open proposal)
    (should (equal "*Ediff Control Panel*" (qwen-companion-test-selected)))))

(ert-deftest qwen-companion-review-unified-test-an-edit-in-the-place-of-a-dropped-hunk ()
  "It cannot be brought back, is still there to be read, and the user is told."
  (qwen-companion-review-unified-test-with-three
    (qwen-companion-test-press "n" "k")
    (qwen-companion-test-editing proposal
      (qwen-companion-test-go-to "\n20")
      (insert "mine"))
    (qwen-companion-test-press "g")
    (should (equal "3 of 3 hunks kept" (qwen-companion-review-unified-test--count)))
    (search-forward "# twenty")
    (let ((text (qwen-companion-proposal-text proposal)))
      (qwen-companion-test-refused "Cannot restore this hunk" (qwen-companion-test-press "u"))
      (should (equal text (qwen-companion-proposal-text proposal))))))

(ert-deftest qwen-companion-review-unified-test-brought-back-by-undo ()
  (qwen-companion-review-unified-test-with-three
    (qwen-companion-test-press "n" "k")
    (qwen-companion-test-editing proposal
      (primitive-undo 2 buffer-undo-list))
    (should (equal (qwen-companion-review-unified-test--new 5 "five" 20 "twenty" 35 nil)
                   (qwen-companion-proposal-text proposal)))
    (qwen-companion-test-press "g")
    (should (equal "3 of 3 hunks kept" (qwen-companion-review-unified-test--count)))
    (should-not (search-forward "# " nil t))))

(ert-deftest qwen-companion-review-unified-test-the-file-is-written-meanwhile ()
  "That is merged; dropped hunks stay dropped, and come back in their places."
  (qwen-companion-review-unified-test-with-three
    (qwen-companion-test-press "n" "k")
    (write-region (concat "new\n" qwen-companion-review-unified-test--old) nil "a.txt" nil 0)
    (qwen-companion-review-file-written (expand-file-name "a.txt"))
    (should (equal "2 of 3 hunks kept" (qwen-companion-review-unified-test--count)))
    (qwen-companion-test-go-to "dropped")
    (qwen-companion-test-press "u")
    (should (equal (concat "new\n" (qwen-companion-review-unified-test--new 5 "five" 20 "twenty" 35 nil))
                   (qwen-companion-proposal-text proposal)))))

(ert-deftest qwen-companion-review-unified-test-nothing-is-done-with-unseen-text ()
  "A text that was changed elsewhere is looked at first."
  (qwen-companion-review-unified-test-with-three
    (dolist (key '("k" "s" "e" "C-c C-c"))
      (qwen-companion-test-edit proposal "\nmine")
      (should-error (qwen-companion-test-press key) :type 'user-error)
      (should (string-match-p "^\\+mine" (buffer-string))))
    ;; And without a key after a little while.
    (qwen-companion-test-edit proposal " too")
    (qwen-companion-test-wait-for (string-match-p "^\\+mine too" (buffer-string)))
    (qwen-companion-test-press "C-c C-c")
    (should (string-suffix-p "mine too" (cadar (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-review-unified-test-comparing-takes-its-time ()
  "The header says so; an outdated comparison is not used."
  (qwen-companion-review-unified-test-with '(("a.txt" "one\n"))
    (let* ((qwen-companion-review-unified-test-answers nil)
           (proposal (qwen-companion-review-unified-test--review "two\n")))
      (should (string-match-p "Comparing" (buffer-string)))
      (should (equal "comparing..." (qwen-companion-review-unified-test--count)))
      (should-error (qwen-companion-test-press "k") :type 'user-error)
      (qwen-companion-test-edit proposal "three\n")
      (funcall (pop qwen-companion-review-unified-test-answers))
      (should (equal "comparing..." (qwen-companion-review-unified-test--count)))
      (funcall (pop qwen-companion-review-unified-test-answers))
      (should (equal "@@ -1,1 +1,2 @@\n-one\n+two\n+three\n"
                     (qwen-companion-review-unified-test--body)))
      (qwen-companion-test-press "g")
      (qwen-companion-diff-reject proposal)
      (mapc #'funcall qwen-companion-review-unified-test-answers))))

(ert-deftest qwen-companion-review-unified-test-uncomparable-texts ()
  "It can be accepted and shown in Ediff all the same."
  (qwen-companion-review-unified-test-with '(("a.txt" "one\n"))
    (cl-letf (((symbol-function 'qwen-companion-merge-compare)
               (lambda (_old _new callback) (funcall callback 'failed))))
      (qwen-companion-review-unified-test--review "two\n")
      (should (string-match-p "comparison failed" (buffer-string)))
      (should-error (qwen-companion-test-press "k") :type 'user-error)
      (qwen-companion-test-press "TAB")
      (should (equal "*Ediff Control Panel*" (buffer-name)))
      (qwen-companion-test-press "TAB" "C-c C-c")
      (should (equal "two\n" (cadar (qwen-companion-test-outcomes)))))))

(ert-deftest qwen-companion-review-unified-test-hostile-text ()
  "Text that looks like a hunk header is a line; bidi characters reorder nothing."
  (qwen-companion-review-unified-test-with nil
    (let ((proposal (qwen-companion-review-unified-test--review
                     "- a/x\n+ b/x\n@ -1 +1 @@\n\\ No newline\n\u202eevil\nEnd %s %p"
                     "sub/%e\n+++ \u202e.txt")))
      (should (string-prefix-p "--- /dev/null\n+++ b/sub/%e\\n+++ \\u202E.txt\n@@ "
                               (buffer-string)))
      (should (eq 'left-to-right bidi-paragraph-direction))
      (should (eq 'hex-code (aref glyphless-char-display #x202e)))
      (should (string-match-p "hidden characters: U\\+202E, line 5" (qwen-companion-test-header)))
      (should (equal "1 of 1 hunk kept" qwen-companion-review-unified--status))
      (set-frame-size (selected-frame) 200 40)
      (should (string-match-p "%%e\\\\n" (qwen-companion-test-header)))
      (search-forward "++ b/x")
      (qwen-companion-hunks-view-fontify (point-min) (point-max))
      (should-not (eq 'diff-file-header (get-text-property (1- (point)) 'face)))
      (qwen-companion-test-press "k" "u")
      (should (string-prefix-p "- a/x" (qwen-companion-proposal-text proposal))))))

(ert-deftest qwen-companion-review-unified-test-no-hook-acts-on-it ()
  "No hook of a mode and no setting of the project acts on it."
  (qwen-companion-review-unified-test-with
      '(("a.txt" "one\n") (".dir-locals.el" "((nil . ((eval . (error \"Evaluated\")) (fill-column . 3))))"))
    (let* (ran
           (diff-mode-hook (list (lambda () (push 'diff ran))))
           ;; project.el runs it in a buffer of its own.
           (hack-local-variables-hook
            (list (lambda ()
                    (when (string-prefix-p "*qwen-companion" (buffer-name))
                      (push 'local-variables ran)))))
           (qwen-companion-unified-mode-hook (list (lambda () (push 'ours ran)))))
      (qwen-companion-review-unified-test--review "two\n")
      (should (equal '(ours) ran))
      (should-not (= 3 fill-column))
      ;; Nothing of `diff-mode' runs for each key or change, except for its colours.
      (dolist (hook '(pre-command-hook post-command-hook before-change-functions
                                       after-change-functions write-contents-functions))
        (should-not (remq 'jit-lock-after-change
                          (remq t (and (local-variable-p hook) (symbol-value hook))))))
      ;; A line of 100,000 parentheses would take seconds to display.
      (dolist (name '("hunks" "disk" "proposal"))
        (should (buffer-local-value 'bidi-inhibit-bpa
                                    (get-buffer (format "*qwen-companion %s: a.txt*" name))))))))

(ert-deftest qwen-companion-review-unified-test-colours ()
  "Lines have those of their language, and the words that differ are marked."
  (qwen-companion-review-unified-test-with '(("a.el" "(defun one ()\n  \"Text.\")\n"))
    (qwen-companion-review-unified-test--review "(defun two ()\n  \"Text.\")\n" "a.el")
    (cl-letf (((symbol-function 'call-process)
               (lambda (&rest _) (ert-fail "A program is waited for")))
              ((symbol-function 'qwen-companion-merge-texts)
               (lambda (base mine theirs _labels callback)
                 (should (equal '(nil "(defun one ()\n" "(defun two ()\n") (list base mine theirs)))
                 (funcall callback (make-qwen-companion-merge-result :edits [7 10 7 10])))))
      ;; Coloured, and again when the words have been compared.
      (qwen-companion-hunks-view-fontify (point-min) (point-max))
      (qwen-companion-hunks-view-fontify (point-min) (point-max)))
    (cl-flet ((faces (text) (save-excursion
                              (qwen-companion-test-go-to text)
                              (ensure-list (get-text-property (match-beginning 0) 'face)))))
      (should (equal '(font-lock-keyword-face diff-removed) (faces "defun")))
      (should (equal '(font-lock-function-name-face diff-added) (faces "two")))
      (should (equal '(font-lock-doc-face diff-context) (faces "Text."))))
    (qwen-companion-test-go-to "tw")
    (should (cl-some (lambda (overlay)
                       ;; Few colours: those of the language must not be swapped.
                       (equal '(diff-refine-added diff-added) (overlay-get overlay 'face)))
                     (overlays-at (1- (point)))))
    ;; Dropped, it has none.
    (qwen-companion-test-press "k")
    (qwen-companion-hunks-view-fontify (point-min) (point-max))
    (qwen-companion-test-go-to "two")
    (should (eq 'qwen-companion-unified-dropped (get-text-property (1- (point)) 'face)))
    (should-not (overlays-at (1- (point))))))

(ert-deftest qwen-companion-review-unified-test-signs-are-not-refined ()
  "Words that differ over several lines are marked, the signs before them never."
  (qwen-companion-review-unified-test-with-review "one\ntwo\nthree\n" "one\nTWO\nTHREE\n"
    (cl-letf (((symbol-function 'display-color-cells) (lambda (&optional _) 256))
              ((symbol-function 'qwen-companion-merge-texts)
               (lambda (_base _mine _theirs _labels callback)
                 (funcall callback (make-qwen-companion-merge-result :edits [0 8 0 8])))))
      (qwen-companion-hunks-view-fontify (point-min) (point-max))
      (qwen-companion-hunks-view-fontify (point-min) (point-max)))
    (should (equal '((diff-refine-removed "two") (diff-refine-removed "thre")
                     (diff-refine-added "TWO") (diff-refine-added "THRE"))
                   (mapcar (lambda (overlay)
                             (list (overlay-get overlay 'face)
                                   (buffer-substring-no-properties
                                    (overlay-start overlay) (overlay-end overlay))))
                           (sort (overlays-in (point-min) (point-max))
                                 (lambda (one two)
                                   (< (overlay-start one) (overlay-start two)))))))))

(ert-deftest qwen-companion-review-unified-test-folds ()
  "Each hunk is an outline heading, and nothing else is."
  (qwen-companion-review-unified-test-with-three
    (outline-minor-mode)
    (goto-char (point-min))
    (qwen-companion-test-press "n")
    (outline-hide-subtree)
    (search-forward "five")
    (should (invisible-p (1- (point))))
    (search-forward "twenty")
    (should-not (invisible-p (1- (point))))))

(ert-deftest qwen-companion-review-unified-test-many-hunks ()
  "They come in stretches, by RET or by n; all are accepted."
  (let* ((lines (number-sequence 1 30000))
         (old (mapconcat (lambda (n) (format "%d\n" n)) lines ""))
         (new (mapconcat (lambda (n) (format (if (zerop (% n 10)) "x%d\n" "%d\n") n)) lines "")))
    (qwen-companion-review-unified-test-with-review old new
      (should (equal "3000 of 3000 hunks kept" (qwen-companion-review-unified-test--count)))
      (should (< (count-lines (point-min) (point-max)) 1200))
      (qwen-companion-test-press "k")
      (goto-char (point-max))
      (forward-line -1)
      (should (looking-at "\\\\ [0-9]+ more hunks (RET"))
      (qwen-companion-test-press "RET")
      (should (looking-at "@@"))
      (should (> (count-lines (point-min) (point-max)) 1900))
      (goto-char (point-max))
      (forward-line -2)
      (qwen-companion-test-press "n")
      (should (looking-at "@@"))
      (qwen-companion-test-press "k" "u")
      (should (equal (string-replace "x10\n" "10\n" new)
                     (qwen-companion-proposal-text proposal))))))

(ert-deftest qwen-companion-review-unified-test-a-long-run ()
  "Its end is left out, and shown on demand."
  (let ((new (mapconcat (lambda (n) (format "%d\n" n)) (number-sequence 1 5000) "")))
    (qwen-companion-review-unified-test-with-review nil new
      (should-not (search-forward "\n+1001\n" nil t))
      (search-forward "4000 more lines")
      (should-error (qwen-companion-test-press "s") :type 'user-error)
      (qwen-companion-test-press "RET")
      (goto-char (point-min))
      (should (search-forward "\n+5000\n" nil t))
      (should-not (search-forward "more lines" nil t))
      (qwen-companion-test-press "p" "k")
      (should (equal "" (qwen-companion-proposal-text proposal)))
      (qwen-companion-test-press "u")
      (should (equal new (qwen-companion-proposal-text proposal)))))
  (qwen-companion-review-unified-test-with nil
    (qwen-companion-review-unified-test--review (mapconcat #'identity (make-list 1001 "x\n") ""))
    (should (search-forward "\\ 1 more line (RET shows it)\n"))))

(ert-deftest qwen-companion-review-unified-test-the-option-is-for-later-proposals ()
  "Open reviews keep their front end; nil offers both as before."
  (qwen-companion-review-unified-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
    (qwen-companion-review-unified-test--review "two\n")
    (setq qwen-companion-diff-style nil)
    (qwen-companion-test-press "q")
    (qwen-companion-diff-open)
    (should (equal "*qwen-companion hunks: a.txt*" (qwen-companion-test-selected)))
    (qwen-companion-diff-accept "a.txt")
    (qwen-companion-diff-open (qwen-companion-test-propose "b.txt" "two\n"))
    (should (equal "*Ediff Control Panel*" (qwen-companion-test-selected)))))

(ert-deftest qwen-companion-review-unified-test-header ()
  "First the file, then warnings, and then the keys."
  (qwen-companion-review-unified-test-with-review "one\n" "two\n"
    (cl-flet ((header () (qwen-companion-test-header)))
      (should (string-match-p
               "\\` a\\.txt  by qwen  1 of 1 hunk kept  C-c C-c accept  C-c C-k reject  k/u drop/restore .*  \\? keys\\'"
               (header)))
      (with-current-buffer (find-file-noselect "a.txt") (insert "mine"))
      (qwen-companion-review-check-unsaved)
      (should (string-match-p "kept  C-c C-u your unsaved text" (header))))))

(ert-deftest qwen-companion-review-unified-test-warnings-fit-into-eighty-columns ()
  "Other keys than the answers and the name make room; a key shows the rest."
  (qwen-companion-review-unified-test-with nil
    (set-frame-size (selected-frame) 80 24)
    (let* ((file "a/directory/of/a/long/name/and/a/file.txt")
           (proposal (qwen-companion-review-unified-test--review "two\n" file))
           (warnings '("loses text (U+FFFD)" "runs at the next commit" "changed since")))
      (should (qwen-companion-test-header-p "….*name/and/a/file.txt  1 of 1 kept  C-c C-c accept  C-c C-k reject\\'"))
      (should-error (call-interactively (key-binding (kbd "C-c C-w"))) :type 'user-error)
      (setf (qwen-companion-proposal-lossy proposal) t
            (qwen-companion-proposal-warning proposal) (nth 1 warnings)
            (qwen-companion-proposal-note proposal) (nth 2 warnings))
      (dolist (buffer (list (current-buffer) (qwen-companion-proposal-buffer proposal)))
        (set-window-buffer nil buffer)
        (set-buffer buffer)
        (should (equal (string-join warnings "\n")
                       (string-trim (qwen-companion-test-messages
                                      (call-interactively (key-binding (kbd "C-c C-w")))))))
        (let ((header (qwen-companion-test-header)))
          (should (<= (string-width header) (window-width)))
          (when (eq major-mode 'qwen-companion-unified-mode)
            (dolist (key '("C-c C-c accept" "C-c C-k reject"))
              (should (string-search key header))))
          (dolist (warning warnings)
            (let ((start (string-search (substring warning 0 12) header)))
              (should start)
              (unless (string-search warning header)
                (should (equal warning (get-text-property start 'help-echo header)))))))))))

(ert-deftest qwen-companion-review-unified-test-keys-that-answer-stay ()
  "Accept and reject stand in each header, also beside warnings in narrow windows."
  (pcase-dolist (`(,columns ,style ,new ,line-ends)
                 '((80 unified "two\n" nil) (80 unified "two\r\n" t)
                   (150 ediff "two\n" nil) (160 ediff "two\r\n" t)))
    (qwen-companion-review-unified-test-with '(("src/greeting.py" "one\n"))
      (set-frame-size (selected-frame) columns 44)
      (let ((qwen-companion-diff-style style)
            (proposal (qwen-companion-test-propose "src/greeting.py" new)))
        (with-current-buffer (find-file-noselect "src/greeting.py") (insert "mine\n"))
        (qwen-companion-diff-open proposal)
        (qwen-companion-review-check-unsaved)
        (dolist (window (window-list))
          (with-selected-window window
            (unless (equal "*Ediff Control Panel*" (buffer-name))
              (let ((header (qwen-companion-test-header)))
                (should (<= (string-width header) (window-width)))
                (should (or (eq style 'ediff) line-ends (string-search "1 of 1 " header)))
                (dolist (part `(,@(if (eq style 'ediff)
                                      '("greeting.py")
                                    '("C-c C-c accept" "C-c C-k reject"))
                                "C-c C-u "
                                ,@(and line-ends '("C-c C-l line ends"))))
                  (should (string-search part header)))))))))))

(ert-deftest qwen-companion-review-unified-test-white-space-alone-is-said ()
  "The header says that nothing but white space differs, in Ediff as well."
  (pcase-dolist (`(,old ,new ,said) '(("if x:\n    y z\n" "if x:\n\ty  z\n\n" t)
                                      ("a b\n" "ab\n" t)
                                      ("a b\n" "a c\n" nil)
                                      ("a\n" "A\n" nil)
                                      ("a\n" "a\nb\n" nil)))
    (dolist (style '(unified ediff))
      (qwen-companion-review-unified-test-with `(("a.txt" ,old))
        (let ((qwen-companion-diff-style style)
              (proposal (qwen-companion-test-propose "a.txt" new)))
          (qwen-companion-diff-open proposal)
          (should (eq said (and (qwen-companion-test-header-p
                                 "white space only"
                                 (if (eq style 'ediff)
                                     (qwen-companion-proposal-buffer proposal)
                                   (qwen-companion-review-windows-control proposal)))
                                t))))))))

(ert-deftest qwen-companion-review-unified-test-header-warns ()
  "It warns of text that would be lost, and of a file written meanwhile."
  (qwen-companion-review-unified-test-with '(("a.txt" "one\n"))
    (let ((coding-system-for-write 'iso-latin-1-unix))
      (write-region "caf\u00e9\n" nil "a.txt" nil 'silent))
    (let ((proposal (qwen-companion-review-unified-test--review "caf\ufffd!\n")))
      (cl-flet ((header () (qwen-companion-test-header)))
        (should (string-match-p "kept  loses text (U\\+FFFD)" (header)))
        (should-not (string-match-p "changed since" (header)))
        (qwen-companion-test-write "a.txt" "tea\n" 5)
        (qwen-companion-review-file-written (qwen-companion-proposal-path proposal))
        (should (string-match-p "loses text (U\\+FFFD)  same lines changed since" (header)))
        ;; Nothing warns of a proposal without these.
        (qwen-companion-diff-reject proposal)
        (qwen-companion-review-unified-test--review "cake\n")
        (should-not (string-match-p "loses text\\|changed since" (header)))))))

(ert-deftest qwen-companion-review-unified-test-unsaved-text-beside-it ()
  "It comes and goes by the same key, also on the way to Ediff and back."
  (qwen-companion-review-unified-test-with '(("a.txt" "one\n"))
    (with-current-buffer (find-file-noselect "a.txt") (insert "mine\n"))
    (let ((before (current-window-configuration)))
      (qwen-companion-review-unified-test--review "two\n")
      (cl-flet ((buffers () (qwen-companion-test-shown))
                (hunks () (should (equal "*qwen-companion hunks: a.txt*"
                                         (qwen-companion-test-selected)))))
        (qwen-companion-test-press "C-c C-u")
        (should (equal '("*qwen-companion hunks: a.txt*" "*qwen-companion yours: a.txt*")
                       (buffers)))
        (hunks)
        (qwen-companion-test-press "TAB" "TAB")
        (hunks)
        (should (member "*qwen-companion yours: a.txt*" (buffers)))
        (qwen-companion-test-press "C-c C-u")
        (should (equal '("*qwen-companion hunks: a.txt*") (buffers)))
        (qwen-companion-test-press "C-c C-u" "C-c C-k")
        (should (qwen-companion-test-same-windows-p before))
        (should-not (get-buffer "*qwen-companion yours: a.txt*"))))))

(ert-deftest qwen-companion-review-unified-test-line-ends-of-the-file ()
  "Lines that come back from the disk end as there."
  (qwen-companion-review-unified-test-with-review "one\r\ntwo\r\n" "two"
    (should (equal "two" (qwen-companion-proposal-text proposal)))
    (qwen-companion-test-press "k")
    (should (equal "one\r\ntwo\r\n" (qwen-companion-proposal-text proposal)))))

(ert-deftest qwen-companion-review-unified-test-its-text-names-the-keys-of-the-user ()
  (let ((qwen-companion-unified-mode-map (copy-keymap qwen-companion-unified-mode-map)))
    (dolist (key '("x" "k"))
      (define-key qwen-companion-unified-mode-map key nil))
    (define-key qwen-companion-unified-mode-map "Z" #'qwen-companion-unified-drop)
    (qwen-companion-review-unified-test-with-review "one\n" "one\r\n"
      (should (string-search "; Z here keeps those on disk\n" (buffer-string)))
      (qwen-companion-test-press "Z")
      (should (string-search "; u here uses the proposed ones\n" (buffer-string))))))

(ert-deftest qwen-companion-review-unified-test-only-line-ends-or-the-mark ()
  "The change is named, and dropping it gives the text on disk."
  (pcase-dolist (`(,old ,new ,said)
                 '(("one\ntwo\n" "one\r\ntwo\r\n" "Line ends: CR LF proposed, LF on disk")
                   ("one\r\ntwo\r\n" "one\ntwo\n" "Line ends: LF proposed, CR LF on disk")
                   ("one\ntwo" "one\r\ntwo" "Line ends: CR LF proposed, LF on disk")
                   ("one\n" "\ufeffone\n" "Byte order mark: proposed, not on disk")
                   ("\ufeffone\n" "one\n" "Byte order mark: not proposed, on disk")
                   ("\ufeffone\r\n" "one\n"
                    "Line ends: LF proposed, CR LF on disk; byte order mark: not proposed, on disk")))
    (qwen-companion-review-unified-test-with-review old new
      (should (equal "0 of 0 hunks kept" (qwen-companion-review-unified-test--count)))
      (should-not (string-search "no difference" (buffer-string)))
      (goto-char (point-min))
      (should (search-forward said nil t))
      (should (qwen-companion-test-header-p "C-c C-l \\(line ends\\|byte order mark\\)"))
      (qwen-companion-test-press "k")
      (should (equal old (qwen-companion-proposal-text proposal)))
      (should (qwen-companion-proposal-edited-p proposal))
      (should (string-search "as on disk" (buffer-string)))
      (qwen-companion-test-press "u")
      (should (equal new (qwen-companion-proposal-text proposal)))
      (should-not (qwen-companion-proposal-edited-p proposal))
      ;; In the other style it stands in the header, with a key.
      (qwen-companion-test-press "k")
      (qwen-companion-diff-switch proposal)
      (qwen-companion-test-editing proposal
        (should (string-search "as on disk" (qwen-companion-test-header)))
        (qwen-companion-diff-toggle-line-ends)
        (should (string-search "proposed" (qwen-companion-test-header)))
        (qwen-companion-diff-toggle-line-ends))
      (qwen-companion-diff-accept proposal)
      (should (equal `((accepted ,old)) (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-review-unified-test-line-ends-beside-other-changes ()
  "They are one thing to drop, the lines are others."
  (qwen-companion-review-unified-test-with-review "one\ntwo\n" "one\r\nTWO\r\n"
    (should (equal "1 of 1 hunk kept" (qwen-companion-review-unified-test--count)))
    (qwen-companion-test-go-to "Line ends")
    (qwen-companion-test-press "k")
    (should (equal "one\nTWO\n" (qwen-companion-proposal-text proposal)))
    (goto-char (point-min))
    (qwen-companion-test-press "n" "k")
    (should (equal "one\ntwo\n" (qwen-companion-proposal-text proposal)))
    ;; The line ends of the file become others, and mixed ones.
    (qwen-companion-test-write "a.txt" "one\ntwo\r\n" 5)
    ;; As long as that is not merged.
    (cl-letf (((symbol-function 'qwen-companion-merge-texts) #'ignore))
      (qwen-companion-review-file-written (expand-file-name "a.txt")))
    (should (equal "one\ntwo\n" (qwen-companion-proposal-text proposal)))
    (should (string-search "-two\r\n+two\n" (buffer-string)))))

(ert-deftest qwen-companion-review-unified-test-open-last-lines-are-not-glued ()
  "A line that comes back has an end when lines of the user's follow."
  (pcase-dolist (`(,old ,new ,edit ,result)
                 (list
                  (list "a\nb\n" "a\nB" (lambda () (qwen-companion-test-append "c\n")) "a\nB\nc\n")
                  (list "a\n" "a\nb\n"
                        (lambda () (goto-char (point-max)) (delete-char -1))
                        "a\nb\n")
                  (list "a\n" "a\nb" (lambda () (qwen-companion-test-append "c")) "a\nb\nc")))
    (qwen-companion-review-unified-test-with-review old new
      (qwen-companion-test-press "k")
      (qwen-companion-test-editing proposal
        (save-excursion (funcall edit)))
      (qwen-companion-review-refresh 'unified proposal)
      (qwen-companion-test-go-to "dropped, u")
      (qwen-companion-test-press "u")
      (should (equal result (qwen-companion-proposal-text proposal)))
      (should-not (string-search "more lines" (buffer-string)))
      (should (equal result
                     (qwen-companion-review-unified-test--patched
                      old (qwen-companion-review-unified-test--shown-patch "\n")))))))

;;; What is accepted is exactly what is shown, see ../fuzz/hunks.el

(defun qwen-companion-review-unified-test--shown-patch (line-end)
  "Return the hunks that are shown and not dropped, as a patch.
LINE-END is what ends the lines in the file."
  (let ((patch "--- old\n+++ new\n") (place (point-min)))
    (while place
      (when-let* ((hunk (qwen-companion-hunks-view-hunk-at place)))
        (unless (qwen-companion-hunks-dropped-p hunk)
          (let ((lines (split-string
                        (buffer-substring-no-properties
                         place (next-single-property-change
                                place 'qwen-companion-hunks-view-hunk nil (point-max)))
                        "\n")))
            (while (cdr lines)
              (let ((line (pop lines)))
                (setq patch
                      (concat patch line
                              ;; Lines of a patch itself end in LF.
                              (if (or (string-match-p "\\`[@\\]" line)
                                      (string-prefix-p "\\" (car lines)))
                                  "\n"
                                line-end))))))))
      (setq place (qwen-companion-hunks-view--boundary place nil)))
    patch))

(defun qwen-companion-review-unified-test--patched (old patch)
  "Return the text OLD after the program patch has applied PATCH."
  (let ((one (make-temp-file "old" nil nil)) (other (make-temp-file "patch"))
        (out (make-temp-file "out"))
        (coding-system-for-write 'utf-8-unix))
    (write-region old nil one nil 0)
    (write-region patch nil other nil 0)
    (unwind-protect
        (with-temp-buffer
          (unless (string-suffix-p "+++ new\n" patch)
            (should (equal '(0 "")
                           (list (call-process "patch" nil t nil "--binary" "--quiet"
                                               "--fuzz=0" "-o" out one other)
                                 (buffer-string)))))
          (if (string-suffix-p "+++ new\n" patch)
              old
            (qwen-companion-test-file-text out)))
      (mapc #'delete-file (list one other out)))))

(declare-function hunks-fuzz-run "../fuzz/hunks" (from count))

(ert-deftest qwen-companion-review-unified-test-random-reviews ()
  "A short run of `make fuzz', with texts that are odd in every way."
  (require 'hunks-fuzz (expand-file-name
                        "../fuzz/hunks"
                        (file-name-directory (locate-library "qwen-companion-review-unified-test"))))
  (hunks-fuzz-run 1 30))

(ert-deftest qwen-companion-review-unified-test-comments-go-with-the-answer ()
  "All go as one prompt after the turn; without a way to send, it is copied."
  (qwen-companion-review-unified-test-with '(("a.txt" "1\n2\n3\n"))
    (let ((root (directory-file-name default-directory))
          answer sent)
      (cl-letf (((symbol-function 'read-string) (lambda (&rest _) answer))
                ((symbol-function 'qwen-companion-backend-session)
                 (lambda (_id) (list :id "session-1" :directory root)))
                ((symbol-function 'qwen-companion-prompts-send)
                 (lambda (session root text anyway)
                   (push (list (plist-get session :id) root text anyway) sent)
                   "Sent")))
        (cl-flet ((comment (line text)
                    (setq answer text)
                    (goto-char (point-min))
                    (re-search-forward (concat "^" line "$"))
                    (qwen-companion-test-press "c")))
          (qwen-companion-review-unified-test--review "1\nTWO\n3\nFOUR\n")
          (comment "\\+FOUR" "Not this.")
          (comment "\\+TWO" "Why?")
          (comment "-2" "Gone.")
          (comment "-2" "")
          ;; Marked, and still so when all is drawn anew, or a part of it.
          (dolist (keys '(() ("+") ("k" "u") ("g")))
            (qwen-companion-test-go-to "+TWO")
            (apply #'qwen-companion-test-press keys)
            (should (equal
                     (list keys "+TWO" "+FOUR")
                     (cons keys
                           (mapcar (lambda (overlay)
                                     (save-excursion
                                       (goto-char (overlay-start overlay))
                                       (buffer-substring-no-properties
                                        (point) (line-end-position))))
                                   (seq-filter (lambda (overlay)
                                                 (overlay-get overlay 'qwen-companion-review-comment))
                                               (seq-sort-by #'overlay-start #'<
                                                            (overlays-in (point-min) (point-max)))))))))
          (qwen-companion-diff-reject)
          (should (equal (list (list "session-1" root
                                     (concat "I have rejected your change, for these reasons:\n"
                                             "\na.txt:2\n> +TWO\nWhy?\n"
                                             "\na.txt:4\n> +FOUR\nNot this.\n")
                                     t))
                         sent))
          ;; Without comments nothing is sent.
          (qwen-companion-review-unified-test--review "1\n")
          (qwen-companion-diff-reject)
          (should (= 1 (length sent)))
          (cl-letf (((symbol-function 'qwen-companion-prompts-send)
                     (lambda (&rest _) (user-error "No terminal")))
                    (kill-ring nil) (kill-ring-yank-pointer nil)
                    (interprogram-cut-function nil))
            (qwen-companion-review-unified-test--review "1\nTWO\n3\n")
            (comment "\\+TWO" "Good.")
            (qwen-companion-diff-accept)
            (should (string-prefix-p "I have accepted your change" (current-kill 0)))
            (should (string-search "Good." (car (qwen-companion-prompts-of root))))))))))

(provide 'qwen-companion-review-unified-test)
;;; qwen-companion-review-unified-test.el ends here
