;;; qwen-companion-review-ediff-test.el --- Tests of reviews with Ediff  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)
(require 'qwen-companion-review-list)

(defmacro qwen-companion-review-ediff-test-with (files &rest body)
  "Run BODY with FILES and a connected companion, in an orderly frame."
  (declare (indent 1) (debug t))
  ;; In the frames of all sizes, but where a test says otherwise.
  `(let ((qwen-companion-review-ediff--least-lines 0))
     (qwen-companion-test-with-reviews ,files ,@body)))

(defmacro qwen-companion-review-ediff-test-with-one (&rest body)
  "Run BODY while a CLI proposes \"two\\n\" for a file with \"one\\n\"; `proposal'."
  (declare (indent 0) (debug t))
  `(qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
     (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
       ,@body)))

(defun qwen-companion-review-ediff-test--left-p ()
  "Return non-nil when a buffer or file of Ediff is left."
  (or (cl-find-if (lambda (buffer)
                    (let ((case-fold-search nil))
                      (string-match-p "\\`\\*\\(?:ediff\\|Ediff Control\\)" (buffer-name buffer))))
                  (buffer-list))
      ediff-session-registry
      (directory-files (qwen-companion-backend-spool) nil "\\`qwen-companion-ediff")))

(ert-deftest qwen-companion-review-ediff-test-falls-back-to-hunks ()
  "It is shown hunk by hunk, with the reason; keys go where they went before."
  (pcase-dolist (`(,new ,program ,reason)
                 (list '("one\nt\0wo\n" "diff" "NUL")
                       ;; Fails later, with output that is no difference.
                       '("one\ntwo\n" "cat" "Errors in diff output")
                       '("one\ntwo\n" "no-such-program" "no-such-program")))
    (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
      (let* ((ediff-diff-program program)
             (proposal (qwen-companion-test-propose "a.txt" new))
             (selected (selected-window))
             (said (qwen-companion-test-messages (qwen-companion-test-show proposal))))
        (should (string-match-p reason said))
        (should (string-match-p "hunk by hunk" said))
        (should (eq selected (selected-window)))
        (should (equal "*terminal*" (qwen-companion-test-selected)))
        (should (equal '("*qwen-companion hunks: a.txt*" "*terminal*") (qwen-companion-test-shown)))
        (should-not (qwen-companion-review-ediff-test--left-p))
        ;; Also when Ediff is asked for.
        (qwen-companion-diff-open proposal)
        (qwen-companion-test-said reason (qwen-companion-diff-switch proposal))
        (should (equal '("*qwen-companion hunks: a.txt*") (qwen-companion-test-shown)))
        (should-not (qwen-companion-review-ediff-test--left-p))
        (should (equal new (qwen-companion-proposal-text proposal)))
        (qwen-companion-diff-accept proposal)
        (should (equal '("*terminal*") (qwen-companion-test-shown)))))))

(ert-deftest qwen-companion-review-ediff-test-falls-back-during-a-review ()
  "A text on disk, or a third one, with a NUL comes while Ediff shows a review."
  (dolist (step (list (lambda ()
                        (write-region "on\0e\n" nil "a.txt" nil 'silent)
                        (set-file-times "a.txt" (time-add nil 5))
                        (qwen-companion-review-file-written (expand-file-name "a.txt")))
                      (lambda ()
                        (with-current-buffer (find-file-noselect "a.txt") (insert "\0"))
                        (qwen-companion-diff-show-unsaved))))
    (qwen-companion-review-ediff-test-with-one
      (let ((selected (selected-window)))
        (qwen-companion-test-show proposal)
        (qwen-companion-test-said "NUL" (funcall step))
        (should (eq selected (selected-window)))
        (should (equal "*qwen-companion hunks: a.txt*" (car (qwen-companion-test-shown))))
        (should-not (qwen-companion-review-ediff-test--left-p))
        (should (eq 'shown (qwen-companion-proposal-state proposal)))))))

(ert-deftest qwen-companion-review-ediff-test-belongs-beside-its-own-terminal ()
  "If its terminal is unknown, it is shown beside any terminal of the project."
  (qwen-companion-review-ediff-test-with-one
    (let* ((here (get-buffer-create "*here*"))
           (own (get-buffer-create "*own*"))
           (process (make-process :name "own" :buffer own :noquery t :command '("sleep" "1000"))))
      (qwen-companion-test-set-sessions (list (list :id "session-1" :ancestors (list (process-id process)))
                                              (list :id "session-2")))
      (with-current-buffer here (setq qwen-companion-terminal-directory default-directory))
      (with-current-buffer own (setq default-directory "/somewhere/"))
      (unwind-protect
          (should (equal (list own) (qwen-companion-review-terminals proposal)))
        (delete-process process))
      (dolist (session '("session-1" "session-2" "gone"))
        (setf (qwen-companion-proposal-session proposal) session)
        (should (equal (list here) (qwen-companion-review-terminals proposal)))))))

(ert-deftest qwen-companion-review-ediff-test-windows-come-back ()
  "Whatever ends the review, in either style, the frame looks as before."
  (pcase-dolist (`(,style ,panel . ,shown)
                 '((ediff "*Ediff Control Panel*" "*qwen-companion disk: a.txt*" "*qwen-companion proposal: a.txt*"
                          "*Ediff Control Panel*" "*terminal*")
                   (unified "*qwen-companion hunks: a.txt*" "*qwen-companion hunks: a.txt*" "*terminal*")))
    (dolist (end (list #'qwen-companion-diff-accept
                       #'qwen-companion-diff-reject
                       (lambda (_) (qwen-companion-diff-bury))
                       (lambda (_) (qwen-companion-proposal-end-all))
                       #'qwen-companion-test-orphan
                       #'qwen-companion-test-close
                       (lambda (proposal)
                         (kill-buffer panel)
                         (should (equal (list proposal) (qwen-companion-proposals)))
                         (qwen-companion-diff-open)
                         (should (equal panel (qwen-companion-test-selected)))
                         (qwen-companion-diff-reject))
                       (lambda (proposal) (kill-buffer (qwen-companion-proposal-disk-buffer proposal)))
                       (lambda (proposal)
                         (qwen-companion-test-edit proposal "mine\n")
                         (kill-buffer (qwen-companion-proposal-buffer proposal))
                         (should (equal "two\nmine\n" (qwen-companion-proposal-text proposal))))))
      (qwen-companion-review-ediff-test-with-one
        (split-window-right)
        (set-window-buffer (next-window) (get-buffer-create "*other*"))
        (let ((before (current-window-configuration))
              (selected (selected-window)))
          (setf (qwen-companion-proposal-style proposal) style)
          (qwen-companion-test-show proposal)
          (should (eq selected (selected-window)))
          (should (equal shown (qwen-companion-test-shown)))
          (funcall end proposal)
          (should (equal '("*terminal*" "*other*") (qwen-companion-test-shown)))
          (should (qwen-companion-test-same-windows-p before))
          (should-not ediff-session-registry)
          (should-not (get-buffer panel))
          (should-not (cl-find-if (lambda (timer)
                                    (string-prefix-p "qwen-companion-review-unified"
                                                     (format "%s" (timer--function timer))))
                                  timer-list)))))))

(ert-deftest qwen-companion-review-ediff-test-eight-lines-of-each-side ()
  "A review begins hunk by hunk where Ediff would show fewer, or as the option says."
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
    (pcase-dolist (`(,columns ,lines ,least ,ediff)
                   '((120 40 8 t) (120 24 8 t) (80 44 8 t) (80 30 8 nil) (80 24 8 nil) (80 24 0 t)))
      (let ((qwen-companion-review-ediff--least-lines least)
            (terminal (selected-window)))
        (set-frame-size (selected-frame) columns lines)
        (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
          (qwen-companion-test-show proposal)
          (should (equal (list columns lines least ediff)
                         (list columns lines least
                               (eq 'ediff (qwen-companion-proposal-style proposal)))))
          (should (eq terminal (selected-window)))
          (when (> least 0)
            (dolist (window (remq terminal (window-list nil 'no-minibuffer)))
              (unless (equal "*Ediff Control Panel*" (buffer-name (window-buffer window)))
                ;; Batch counts neither mode line nor header line.
                (should (>= (- (window-total-height window) 2) 8)))))
          ;; By its key Ediff comes all the same.
          (unless ediff
            (qwen-companion-diff-switch)
            (should (get-buffer-window "*qwen-companion proposal: a.txt*")))
          (qwen-companion-diff-reject))))))

(ert-deftest qwen-companion-review-ediff-test-looks ()
  "The sides have the colours of a diff; the panel is labelled from its left."
  (qwen-companion-review-ediff-test-with '(("a.txt" "1\n2\n3\n4\n5\n6\n7\n8\n9\n"))
    (let ((said (qwen-companion-test-messages
                  (qwen-companion-test-show (qwen-companion-test-propose "a.txt" "0\n1\n2\n3\n4\n5\n6\n7\n8\nNINE\n") t))))
      (should-not (string-search "is empty" said))
      ;; What removes that directory when Emacs is killed removes its files too.
      (should (directory-files (qwen-companion-backend-spool) nil "\\`qwen-companion-ediff"))
      (pcase-dolist (`(,side ,face ,soft ,strong)
                     '(("disk" "A" diff-removed diff-refine-removed)
                       ("proposal" "B" diff-added diff-refine-added)))
        (with-current-buffer (format "*qwen-companion %s: a.txt*" side)
          (dolist (kind '("even" "odd"))
            (should (member (list :inherit soft :extend t)
                            (assq (intern (format "ediff-%s-diff-%s" kind face))
                                  face-remapping-alist))))
          ;; Few colours: those of the language must not be swapped.
          (should (member (list :inherit (list strong soft) :extend t)
                          (assq (intern (format "ediff-current-diff-%s" face))
                                face-remapping-alist)))))
      (should-not (default-value 'face-remapping-alist))
      (should (equal "*Ediff Control Panel*" (buffer-name)))
      (goto-char (point-min))
      (should (looking-at "C-c C-c accept   C-c C-k reject"))
      ;; The other direction would write to the disk side.
      (should (string-search "a drop the change   e edit" (buffer-string)))
      (should (eq 'help-key-binding (get-text-property (point) 'face)))
      (should (equal " Review in Ediff: a.txt, change 1 of 2"
                     (eval (cadr (window-parameter nil 'mode-line-format)) t)))
      (call-interactively (key-binding "n"))
      (should (equal " Review in Ediff: a.txt, change 2 of 2"
                     (eval (cadr (window-parameter nil 'mode-line-format)) t))))))

;; Changes of every kind, in every order of two: (r)eplaced, (i)nserted,
;; (d)eleted, and only the white space (w) of a line changed.
(defun qwen-companion-review-ediff-test--neighbors (kinds)
  "Return two texts (OLD . NEW) with a change of each of KINDS, in that order."
  (cl-loop for kind across kinds
           for number from 1
           for line = (format "line%d of words\n" number)
           for other = (format "row%d of words\n" number)
           for space = (format "line%d  of   words\n" number)
           concat (concat "same\n" (unless (eq kind ?i) line)) into old
           concat (concat "same\n" (pcase kind (?r other) (?i line) (?w space))) into new
           finally return (cons old new)))

(ert-deftest qwen-companion-review-ediff-test-goes-through-all-changes ()
  "Each key of Ediff goes where it says, whatever the changes and options are."
  (pcase-dolist (`(,kinds . ,options)
                 `(("rridrwiidiwddwwr") ("irr") ("drr") ("wrr")
                   ,@(mapcar (lambda (option) (cons "rrw" option))
                             '((ediff-auto-refine off) (ediff-auto-refine nix)
                               (ediff-auto-refine-limit 0) (ediff-highlight-all-diffs nil)
                               (ediff-highlighting-style ascii) (ediff-use-faces nil)
                               (ediff-use-long-help-message t) (ediff-keep-variants nil)
                               (ediff-make-buffers-readonly-at-startup t)
                               (ediff-diff-options "-d") (ediff-diff-options "-w")
                               (ediff-actual-diff-options "-w") (ediff-actual-diff3-options "-T")
                               (ediff-ignore-similar-regions t)
                               (ediff-skip-diff-region-function always)
                               (ediff-split-window-function split-window-horizontally)
                               (ediff-window-setup-function ediff-setup-windows-multiframe)))))
    (pcase-let ((`(,old . ,new) (qwen-companion-review-ediff-test--neighbors kinds)))
      (qwen-companion-review-ediff-test-with (list (list "a.txt" old))
        (let* ((temporary-file-directory (expand-file-name ".git/"))
               ;; As where there are colours.
               (ediff-force-faces t)
               (ediff-highlighting-style 'face)
               (ediff-auto-refine 'on)
               (proposal (qwen-companion-test-propose "a.txt" new))
               (there (number-sequence 0 (1- (length kinds))))
               (before (and options (default-value (car options))))
               (current (lambda ()
                          (should (qwen-companion-proposal-open-p proposal))
                          ediff-current-difference)))
          (unwind-protect
              (progn
                (when options
                  (set-default (car options) (cadr options)))
                (qwen-companion-test-show proposal t)
                (should (equal "*Ediff Control Panel*" (buffer-name)))
                (dolist (index there)
                  (should (equal (list kinds options index) (list kinds options (funcall current))))
                  (unless (eq index (car (last there)))
                    (call-interactively (key-binding "n"))))
                (dolist (index (cdr (reverse there)))
                  (call-interactively (key-binding "p"))
                  (should (= index (funcall current))))
                (let ((current-prefix-arg 2))
                  (call-interactively (key-binding "j")))
                (should (= 1 (funcall current)))
                (call-interactively (key-binding "*"))
                (call-interactively (key-binding "!"))
                ;; These make the options of diff anew.
                (dotimes (_ 2)
                  (call-interactively (key-binding "#c")))
                (call-interactively (key-binding "n"))
                (should (= (length kinds) ediff-number-of-differences))
                (qwen-companion-diff-reject proposal))
            (when options
              (set-default (car options) before)))
          (should-not (qwen-companion-review-ediff-test--left-p)))))))

(ert-deftest qwen-companion-review-ediff-test-buried-review-comes-back-with-its-edits ()
  "By the keys of the panel, or by those of each side."
  (dolist (place '("*Ediff Control Panel*" "*qwen-companion proposal: a.txt*" "*qwen-companion disk: a.txt*"))
    (pcase-dolist (`(,key . ,outcome) '(("C-c C-c" accepted "two\nmine\n") ("C-c C-k" rejected nil)))
      (qwen-companion-review-ediff-test-with-one
        (qwen-companion-test-show proposal t)
        (qwen-companion-test-edit proposal "mine\n")
        (qwen-companion-test-press "q")
        (should (equal (list proposal) (qwen-companion-proposals)))
        (should-not (qwen-companion-test-sent 'outcome))
        (should (equal "*terminal*" (qwen-companion-test-selected)))
        (qwen-companion-diff-open)
        (should (equal "*Ediff Control Panel*" (qwen-companion-test-selected)))
        (select-window (get-buffer-window place))
        (qwen-companion-test-press key)
        (should (equal (list outcome) (qwen-companion-test-outcomes)))))))

(ert-deftest qwen-companion-review-ediff-test-windows-of-the-user-stay ()
  "Buffers that the user has shown beside the review, or in its place, stay."
  (pcase-dolist (`(,end ,alone) '((qwen-companion-diff-accept nil) (qwen-companion-diff-bury nil)
                                  (qwen-companion-diff-accept t)))
    (qwen-companion-review-ediff-test-with-one
      (split-window-right)
      (set-window-buffer (next-window) (get-buffer-create "*other*"))
      (qwen-companion-test-show proposal)
      (when alone
        (delete-other-windows))
      (switch-to-buffer (get-buffer-create "*second terminal*"))
      (funcall end)
      (should (equal (if alone '("*second terminal*") '("*second terminal*" "*other*"))
                     (qwen-companion-test-shown)))
      (should (equal "*second terminal*" (qwen-companion-test-selected))))))

(ert-deftest qwen-companion-review-ediff-test-opening-again-is-the-same-session ()
  "It is the same session after the user changed the windows."
  (qwen-companion-review-ediff-test-with-one
    (qwen-companion-test-show proposal)
    (dolist (change (list #'ignore
                          (lambda ()
                            (select-window (get-buffer-window "*terminal*"))
                            (delete-other-windows))))
      (funcall change)
      (qwen-companion-diff-open)
      (should (equal "*Ediff Control Panel*" (qwen-companion-test-selected)))
      (should (get-buffer-window "*qwen-companion proposal: a.txt*"))
      (should (= 1 (length ediff-session-registry))))
    (qwen-companion-diff-reject)
    (should (equal '("*terminal*") (qwen-companion-test-shown)))
    (should-not ediff-session-registry)))

(ert-deftest qwen-companion-review-ediff-test-one-table-of-keys ()
  "The keys of the control panel work in each side, where none types until \"e\"."
  (qwen-companion-review-ediff-test-with '(("a.txt" "1\n2\n3\n4\n5\n6\n7\n"))
    (let ((proposal (qwen-companion-test-propose "a.txt" "ONE\n2\n3\n4\n5\n6\nSEVEN\n")))
      (qwen-companion-test-show proposal t)
      (dolist (side '("*qwen-companion disk: a.txt*" "*qwen-companion proposal: a.txt*"))
        (cl-flet ((current () (buffer-local-value 'ediff-current-difference
                                                  (get-buffer "*Ediff Control Panel*")))
                  (selected () (equal side (qwen-companion-test-selected))))
          (select-window (get-buffer-window side))
          (execute-kbd-macro "n")
          (should (= 1 (current)))
          (should (selected))
          (execute-kbd-macro "p")
          (should (= 0 (current)))
          (should (selected))
          (should-error (execute-kbd-macro "x"))
          (execute-kbd-macro (kbd "TAB"))
          (should (equal "*qwen-companion hunks: a.txt*" (qwen-companion-test-selected)))
          (execute-kbd-macro (kbd "TAB"))
          (select-window (get-buffer-window side))
          (execute-kbd-macro "q")
          (should (equal '("*terminal*") (qwen-companion-test-shown)))
          (qwen-companion-diff-open)))
      (should (equal "ONE\n2\n3\n4\n5\n6\nSEVEN\n" (qwen-companion-proposal-text proposal)))
      (select-window (get-buffer-window "*qwen-companion proposal: a.txt*"))
      (should (qwen-companion-test-header-p "e edit"))
      (execute-kbd-macro "a")
      (should (equal "1\n2\n3\n4\n5\n6\nSEVEN\n" (qwen-companion-proposal-text proposal)))
      ;; From the other side too.
      (select-window (get-buffer-window "*qwen-companion disk: a.txt*"))
      (execute-kbd-macro "e")
      (should (equal "*qwen-companion proposal: a.txt*" (qwen-companion-test-selected)))
      (should-not (qwen-companion-test-header-p "e edit"))
      (goto-char (point-min))
      (execute-kbd-macro "nap")
      (should (equal "nap1\n2\n3\n4\n5\n6\nSEVEN\n" (qwen-companion-proposal-text proposal)))
      (execute-kbd-macro (kbd "C-x C-q"))
      (should-error (execute-kbd-macro "x"))
      (execute-kbd-macro (kbd "C-c C-c"))
      (should (equal '((accepted "nap1\n2\n3\n4\n5\n6\nSEVEN\n")) (qwen-companion-test-outcomes))))))

;;; From the terminal

(defvar qwen-companion-review-ediff-test--sent nil
  "Keys that the terminal has got by its own C-c C-c.")

(defmacro qwen-companion-review-ediff-test-in-terminal (&rest body)
  "Run BODY in a terminal with our keys and a C-c C-c of its own."
  (declare (indent 0) (debug t))
  `(qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
     (qwen-companion-test-with-terminal "session-1"
       (let ((map (make-sparse-keymap))
             (qwen-companion-review-ediff-test--sent nil))
         (define-key map (kbd "C-c C-c")
                     (lambda ()
                       (interactive)
                       (setq qwen-companion-review-ediff-test--sent (this-command-keys))))
         (use-local-map map)
         (qwen-companion-review-keys-mode 1)
         (unwind-protect
             (progn ,@body)
           (with-current-buffer "*terminal*"
             (qwen-companion-review-keys-mode -1)
             (use-local-map nil)))))))

(ert-deftest qwen-companion-review-ediff-test-terminal-asks-what-the-key-is-for ()
  "C-c C-c and C-c C-k ask while a review of the CLI waits, and only then."
  (pcase-dolist (`(,key ,answer ,choices ,outcome)
                 '(("C-c C-c" ?a "arc" accepted) ("C-c C-c" ?r "arc" rejected)
                   ("C-c C-c" ?c "arc" nil) ("C-c C-k" ?a "ar" accepted)))
    (qwen-companion-review-ediff-test-in-terminal
      (let (asked)
        (cl-letf (((symbol-function 'read-multiple-choice)
                   (lambda (prompt choices &rest _)
                     (push (cons prompt choices) asked)
                     (assq answer choices))))
          (execute-kbd-macro (kbd "C-c C-c"))
          (should (equal "\C-c\C-c" qwen-companion-review-ediff-test--sent))
          (should-not asked)
          (should-not (key-binding (kbd "C-c C-k")))
          (setq qwen-companion-review-ediff-test--sent nil)
          ;; That of another CLI does not count.
          (qwen-companion-test-propose "b.txt" "b\n" :session "session-2")
          (execute-kbd-macro (kbd "C-c C-c"))
          (should qwen-companion-review-ediff-test--sent)
          (setq qwen-companion-review-ediff-test--sent nil)
          (qwen-companion-test-show (qwen-companion-test-propose "a.txt" "two\n"))
          (should (equal "*terminal*" (qwen-companion-test-selected)))
          (execute-kbd-macro (kbd key))
          (should (equal choices (concat (mapcar #'car (cdar asked)))))
          (should (string-match-p "a\\.txt" (caar asked)))
          (when (assq ?c (cdar asked))
            (should (equal "send C-c to qwen" (cadr (assq ?c (cdar asked))))))
          (should (equal (and (eq answer ?c) "\C-c\C-c") qwen-companion-review-ediff-test--sent))
          (should (eq outcome (caar (qwen-companion-test-outcomes))))
          (should (= 1 (length asked))))))))

(ert-deftest qwen-companion-review-ediff-test-header-names-the-way-here ()
  "Where its keys do not work, it names the key that goes to the review."
  (dolist (style '(ediff unified))
    (qwen-companion-review-ediff-test-in-terminal
      (let ((proposal (qwen-companion-test-propose "a.txt" "two\n"))
            (find (symbol-function 'where-is-internal)))
        (setf (qwen-companion-proposal-style proposal) style)
        (qwen-companion-test-show proposal)
        (pcase-dolist (`(,from . ,shown)
                       `(("*terminal*" . "C-c , r goes here")
                         ("*scratch*" . "M-x qwen-companion-review goes here")
                         (,(buffer-name (qwen-companion-proposal-buffer proposal))
                          . ,(if (eq style 'ediff)
                                 "e edit"
                               "C-c C-c accept  C-c C-k reject"))))
          (cl-letf (((symbol-function 'qwen-companion-review--user-buffer)
                     (lambda () (get-buffer from)))
                    ;; Searching all keymaps for it delays the review by up to a second.
                    ((symbol-function 'where-is-internal)
                     (lambda (command &optional keymap &rest rest)
                       (should (or keymap (not (eq command 'qwen-companion-review))))
                       (apply find command keymap rest))))
            (with-current-buffer (if (eq style 'ediff)
                                     (qwen-companion-proposal-buffer proposal)
                                   (qwen-companion-review-windows-control proposal))
              (let ((header (qwen-companion-test-header-from-elsewhere)))
                (should (string-match-p "a\\.txt" header))
                (should (string-search shown header))
                (should (eq (and (string-search "accept" shown) t)
                            (and (string-search "accept" header) t)))))
            (when (eq style 'ediff)
              (qwen-companion-review--update-selection)
              (with-current-buffer (qwen-companion-review-windows-control proposal)
                (should (string-prefix-p
                         (if (string-suffix-p "goes here" shown)
                             (concat shown ", then   C-c C-c accept")
                           "C-c C-c accept")
                         (or (get-char-property (point-min) 'display) (buffer-string)))))
              ;; The other side does not repeat that, nor the keys of the panel.
              (with-current-buffer (qwen-companion-proposal-disk-buffer proposal)
                (should (string-match-p "\\` a\\.txt: on disk\\'"
                                        (qwen-companion-test-header-from-elsewhere)))))))
        (should (memq #'qwen-companion-review--selection-changed window-selection-change-functions))
        (qwen-companion-diff-reject proposal)
        (should-not (memq #'qwen-companion-review--selection-changed
                          window-selection-change-functions))))))

(ert-deftest qwen-companion-review-ediff-test-dropping-a-change ()
  "Ediff's own copying takes a change of the proposal back."
  (qwen-companion-review-ediff-test-with '(("a.txt" "1\n2\n3\n4\n5\n6\n7\n"))
    (qwen-companion-test-show (qwen-companion-test-propose "a.txt" "ONE\n2\n3\n4\n5\n6\nSEVEN\n") t)
    (call-interactively (key-binding "a"))
    ;; Ediff goes beyond the last one.
    (dotimes (_ 2)
      (call-interactively (key-binding "n")))
    (should (string-suffix-p "after the last change"
                             (eval (cadr (window-parameter nil 'mode-line-format)) t)))
    (qwen-companion-test-refused "Not on a change; move to one first"
      (call-interactively (key-binding "a")))
    (qwen-companion-diff-accept)
    (should (equal "1\n2\n3\n4\n5\n6\nSEVEN\n" (cadar (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-review-ediff-test-settings-and-hooks-of-the-user ()
  "Each of the user's hooks runs once; all is as before afterwards."
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
    (let* (ran
           (note (lambda (name) (list (lambda () (push name ran)))))
           (ediff-mode-hook (funcall note 'mode))
           (ediff-startup-hook (funcall note 'startup))
           (ediff-cleanup-hook (funcall note 'cleanup))
           (ediff-quit-hook (append ediff-quit-hook (funcall note 'quit)))
           (ediff-before-setup-windows-hook (list #'ignore))
           (ediff-window-setup-function #'ediff-setup-windows-multiframe)
           (ediff-split-window-function #'split-window-vertically)
           (ediff-keep-variants nil)
           (ediff-use-long-help-message t)
           (settings (lambda ()
                       (mapcar #'default-value
                               '(ediff-mode-hook ediff-startup-hook
                                 ediff-quit-hook ediff-cleanup-hook
                                 ediff-before-setup-windows-hook
                                 ediff-window-setup-function
                                 ediff-split-window-function
                                 ediff-keep-variants
                                 ediff-grab-mouse
                                 ediff-use-long-help-message
                                 ediff-control-frame-parameters
                                 ediff-brief-help-message-function
                                 ediff-long-help-message-function
                                 window-min-height
                                 window-combination-resize))))
           (before (funcall settings)))
      (qwen-companion-test-show (qwen-companion-test-propose "a.txt" "two\n"))
      (should (equal '(startup mode) ran))
      (should (equal before (funcall settings)))
      (qwen-companion-diff-reject)
      (should (equal '(quit cleanup startup mode) ran))
      (should (equal before (funcall settings))))))

(ert-deftest qwen-companion-review-ediff-test-hooks-that-fail-or-do-not-clean-up ()
  "Nothing of the review is left, whatever the user's hooks do."
  (dolist (hooks '(((ediff-startup-hook error))
                   ((ediff-cleanup-hook error))
                   ((ediff-quit-hook error))
                   ;; Without Ediff's own function, which the user may move.
                   ((ediff-quit-hook))
                   ((ediff-quit-hook delete-other-windows ediff-cleanup-mess))))
    (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
      (split-window-right)
      (let ((before (current-window-configuration))
            (proposal (qwen-companion-test-propose "a.txt" "two\n")))
        (cl-progv (mapcar #'car hooks) (mapcar #'cdr hooks)
          (qwen-companion-test-show proposal)
          (qwen-companion-diff-reject proposal))
        (should-not ediff-session-registry)
        (should-not (get-buffer "*Ediff Control Panel*"))
        (should (qwen-companion-test-same-windows-p before))))))

(ert-deftest qwen-companion-review-ediff-test-user-session-is-left-alone ()
  "Ediff of the user's own has the user's settings while a review is open."
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
    (qwen-companion-test-show (qwen-companion-test-propose "a.txt" "two\n"))
    (let ((ediff-window-setup-function #'ediff-setup-windows-plain)
          (one (get-buffer-create "*one*"))
          (other (get-buffer-create "*two*")))
      (with-current-buffer one (insert "1\n"))
      (with-current-buffer other (insert "2\n"))
      (ediff-buffers one other)
      (let ((control (car ediff-session-registry)))
        (with-current-buffer control
          (should (eq 'ediff-quit (key-binding "q")))
          (should-not qwen-companion-proposal-current)
          (should-not (memq 'qwen-companion-review-ediff--layout ediff-before-setup-windows-hook)))
        (qwen-companion-diff-reject)
        (should (buffer-live-p control))
        (should (equal (list control) ediff-session-registry))
        (with-current-buffer control (ediff-really-quit nil))))))

(ert-deftest qwen-companion-review-ediff-test-long-help-names-our-keys ()
  "The long help names our keys, and the panel has room for all of it."
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
    (qwen-companion-test-show (qwen-companion-test-propose "a.txt" "two\n") t)
    (should (string-match-p "C-c C-c accept" (buffer-string)))
    (let ((height (window-height)))
      (call-interactively (key-binding "?"))
      (set-buffer (window-buffer))
      (dolist (key '("C-c C-c" "C-c C-k" "put it aside"))
        (should (string-match-p key (buffer-string))))
      (should (>= (window-body-height (get-buffer-window "*Ediff Control Panel*"))
                  (count-lines (point-min) (point-max))))
      (should (get-buffer-window "*qwen-companion proposal: a.txt*"))
      (call-interactively (key-binding "?"))
      (should (= height (window-height (get-buffer-window "*Ediff Control Panel*")))))))

(ert-deftest qwen-companion-review-ediff-test-header-describes-the-proposal ()
  "File, CLI, project and state; names of strangers stay names."
  (qwen-companion-review-ediff-test-with nil
    (let* ((project (file-name-nondirectory (directory-file-name default-directory)))
           (proposal (qwen-companion-test-propose
                      "sub/%e\n\u202e.txt" "two\n" :client "Qwen %p Code 0.24.4")))
      (qwen-companion-test-show proposal)
      (qwen-companion-test-editing proposal
        (should (string-prefix-p
                 (format " sub/%%%%e\\n\\u202E.txt: proposed  by Qwen %%%%p Code  in %s  " project)
                 (qwen-companion-test-header)))
        (insert "mine")
        (should (string-match-p "  edited by you  " (qwen-companion-test-header)))
        (undo-boundary)
        (primitive-undo 1 buffer-undo-list)))))

(ert-deftest qwen-companion-review-ediff-test-comes-again-when-its-frame-is-gone ()
  "A review comes back with its edits; one put aside does not."
  (qwen-companion-review-ediff-test-with-one
    (let ((qwen-companion-diff-arrival 'now))
      (qwen-companion-test-show proposal)
      (qwen-companion-test-edit proposal "mine\n")
      ;; In batch there is one frame only: all but the end of it.
      (qwen-companion-review-frame-deleted nil)
      (should (qwen-companion-review-shown))
      (qwen-companion-review-frame-deleted (selected-frame))
      (should-not (qwen-companion-review-shown))
      (should-not ediff-session-registry)
      (qwen-companion-test-wait-for (qwen-companion-review-shown))
      (should (equal "two\nmine\n" (qwen-companion-proposal-text proposal)))
      (qwen-companion-diff-bury)
      (qwen-companion-review-frame-deleted (selected-frame))
      (should-not (qwen-companion-test-review-awaits-p))
      (qwen-companion-diff-reject)
      (should (equal '("*terminal*") (qwen-companion-test-shown))))))

(ert-deftest qwen-companion-review-ediff-test-new-file ()
  (qwen-companion-review-ediff-test-with nil
    (qwen-companion-test-show (qwen-companion-test-propose "new/a.txt" "two\n"))
    (with-current-buffer "*qwen-companion disk: a.txt*"
      (should (zerop (buffer-size)))
      (should (string-match-p "not on disk yet" (qwen-companion-test-header))))
    (should-not (file-exists-p "new"))
    (qwen-companion-diff-reject)
    (should-not (file-exists-p "new"))))

(ert-deftest qwen-companion-review-ediff-test-opens-by-itself-one-at-a-time ()
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
    (let ((qwen-companion-diff-arrival 'now))
      (qwen-companion-test-propose "a.txt" "two\n")
      (qwen-companion-test-wait-for (get-buffer-window "*qwen-companion proposal: a.txt*"))
      (qwen-companion-test-propose "b.txt" "two\n")
      (should (qwen-companion-test-review-awaits-p))
      (qwen-companion-diff-reject "a.txt")
      (qwen-companion-test-wait-for (get-buffer-window "*qwen-companion proposal: b.txt*"))
      (qwen-companion-diff-reject)
      (should (equal '("*terminal*") (qwen-companion-test-shown)))
      (should-not (qwen-companion-test-review-awaits-p)))))

;;; Arrival

(ert-deftest qwen-companion-review-ediff-test-is-announced-once ()
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
    (let* ((qwen-companion-diff-arrival 'now)
           (said (qwen-companion-test-messages
                   (qwen-companion-test-propose "a.txt" "two\n" :client "Qwen\nCode")
                   (qwen-companion-test-wait-for (qwen-companion-review-shown))
                   (qwen-companion-diff-bury)
                   (qwen-companion-diff-open))))
      (should (equal 2 (length (split-string said "Qwen\\\\nCode proposes a change of .*a\\.txt")))))))

(ert-deftest qwen-companion-review-ediff-test-no-room-beside-the-selected-window ()
  "A review does not take it by itself; by command its keys are where one is."
  (dolist (style '(ediff unified))
    (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
      (let* ((qwen-companion-diff-style style)
             (qwen-companion-diff-arrival 'now)
             (before (selected-window))
             (keys (if (eq style 'ediff) "*Ediff Control Panel*"
                     "*qwen-companion hunks: a.txt*"))
             (name (lambda () (qwen-companion-test-selected))))
        (set-frame-size (selected-frame) 80 18)
        (qwen-companion-test-said "no room beside this window, M-x qwen-companion-review"
          (qwen-companion-test-propose "a.txt" "two\n"))
        (qwen-companion-test-show-next)
        (should (equal '("*terminal*") (qwen-companion-test-shown)))
        (should (eq before (selected-window)))
        (qwen-companion-review)
        (should (equal keys (funcall name)))
        (qwen-companion-diff-bury)
        (should (equal "*terminal*" (funcall name)))
        ;; Shown from the list, which has to give way.
        (qwen-companion-diffs)
        (delete-other-windows)
        (goto-char (point-min))
        (forward-line)
        (qwen-companion-reviews-show)
        (should (equal keys (funcall name)))
        (qwen-companion-diff-reject)
        (qwen-companion-list-close 'qwen-companion-diffs-mode)
        ;; With the option it may, and comes by itself as soon as there is room.
        (switch-to-buffer "*terminal*")
        (let ((qwen-companion-diff-select t))
          (qwen-companion-test-propose "a.txt" "two\n")
          (qwen-companion-test-show-next)
          (should (equal keys (funcall name)))
          (qwen-companion-diff-reject))
        (qwen-companion-test-propose "a.txt" "two\n")
        (qwen-companion-test-show-next)
        (should-not (qwen-companion-review-shown))
        (set-frame-size (selected-frame) 80 30)
        (qwen-companion-test-show-next)
        (should (qwen-companion-review-shown))
        (should (equal "*terminal*" (funcall name)))))))

(ert-deftest qwen-companion-review-ediff-test-arrival-when-idle ()
  "It opens only after half a second without input."
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
    (let* ((qwen-companion-diff-arrival 'idle)
           (proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (should (= 1 (cl-count #'qwen-companion-review--show-next timer-idle-list
                             :key #'timer--function)))
      (dolist (idle '(nil 0.4))
        (cl-letf (((symbol-function 'current-idle-time)
                   (lambda () (and idle (seconds-to-time idle)))))
          (qwen-companion-test-show-next)
          (should-not (qwen-companion-proposal-seen proposal))))
      ;; Less than nothing when the clock was set back meanwhile.
      (dolist (idle '(0.5 -3600))
        (cl-letf (((symbol-function 'current-idle-time) (lambda () (seconds-to-time idle))))
          (qwen-companion-test-show-next))
        (should (eq proposal (qwen-companion-review-shown)))
        (should-not (qwen-companion-test-review-awaits-p))
        (qwen-companion-diff-reject)
        (setq proposal (qwen-companion-test-propose "b.txt" "two\n")))
      (qwen-companion-diff-reject)
      (should-not (cl-find #'qwen-companion-review--show-next timer-idle-list
                           :key #'timer--function)))))

(ert-deftest qwen-companion-review-ediff-test-does-not-open-while-busy ()
  (qwen-companion-review-ediff-test-with-one
    (dolist (busy '(executing-kbd-macro defining-kbd-macro track-mouse
                                        this-command prefix-arg isearch-mode))
      (cl-progv (list busy) (list t)
        (qwen-companion-test-show-next)
        (should-not (qwen-companion-proposal-seen proposal))))
    (pcase-dolist (`(,function . ,value)
                   `((active-minibuffer-window . t)
                     (recursion-depth . 1)
                     (this-single-command-keys . [24])
                     (qwen-companion-context-frame-p . nil)))
      (cl-letf (((symbol-function function) (lambda (&rest _) value)))
        (qwen-companion-test-show-next)
        (should-not (qwen-companion-proposal-seen proposal))))
    ;; So it is in a terminal whose program wants all moves of the mouse.
    (setq-local track-mouse t)
    (unwind-protect
        (qwen-companion-test-show-next)
      (kill-local-variable 'track-mouse))
    (should (qwen-companion-proposal-seen proposal))))

(ert-deftest qwen-companion-review-ediff-test-waits-for-another-ediff-session ()
  "It says so, and opens by itself when that is no longer on the screen."
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
    (let ((ediff-window-setup-function #'ediff-setup-windows-plain)
          (qwen-companion-diff-arrival 'now)
          (one (get-buffer-create "*one*"))
          (other (get-buffer-create "*two*"))
          proposal)
      (with-current-buffer one (insert "1\n"))
      (with-current-buffer other (insert "2\n"))
      (ediff-buffers one other)
      (qwen-companion-test-said "it will open after the Ediff session"
        (setq proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (qwen-companion-test-show-next)
      (should-not (qwen-companion-proposal-seen proposal))
      (should (get-buffer-window one))
      (with-current-buffer (car ediff-session-registry) (ediff-really-quit nil))
      (qwen-companion-test-wait-for (qwen-companion-review-shown))
      (qwen-companion-diff-reject)
      (should-not (string-match-p "Ediff" (qwen-companion-test-messages (qwen-companion-test-propose "a.txt" "three\n")))))))

(defmacro qwen-companion-review-ediff-test-with-tabs (&rest body)
  "Run BODY in the first of two tabs; the second shows *other*."
  (declare (indent 0) (debug t))
  `(let ((tab-bar-show nil)
         (tab-bar-new-tab-choice t))
     (unwind-protect
         (progn
           (tab-bar-new-tab)
           (switch-to-buffer (get-buffer-create "*other*"))
           (tab-bar-select-tab 1)
           ,@body)
       (tab-bar-select-tab 1)
       (tab-bar-close-other-tabs))))

(ert-deftest qwen-companion-review-ediff-test-waits-for-the-tab-of-its-terminal ()
  "Another one, of a CLI that is not in Emacs, need not wait for it."
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
    (qwen-companion-test-with-terminal "session-1"
      (qwen-companion-review-ediff-test-with-tabs
        (tab-bar-select-tab 2)
        (let ((proposal (qwen-companion-test-propose "a.txt" "two\n"))
              (foreign (qwen-companion-test-propose "b.txt" "two\n" :session "session-2")))
          (qwen-companion-test-show-next)
          (should-not (qwen-companion-proposal-seen proposal))
          (should (qwen-companion-proposal-seen foreign))
          (qwen-companion-diff-reject foreign)
          (should (equal '("*other*") (qwen-companion-test-shown)))
          (qwen-companion-test-show-next)
          (should-not (qwen-companion-proposal-seen proposal))
          (tab-bar-select-tab 1)
          (qwen-companion-test-show-next)
          (should (get-buffer-window "*qwen-companion proposal: a.txt*"))
          (should (get-buffer-window "*terminal*"))
          ;; On command it opens wherever the user is.
          (qwen-companion-diff-bury)
          (tab-bar-select-tab 2)
          (qwen-companion-diff-open)
          (should (get-buffer-window "*qwen-companion proposal: a.txt*"))
          (qwen-companion-diff-reject)
          (should (equal '("*other*") (qwen-companion-test-shown))))))))

(ert-deftest qwen-companion-review-ediff-test-restores-the-tab-it-was-in ()
  "Each tab gets its windows back, in any order and with any tab selected."
  (dolist (end (list (lambda (proposal) (qwen-companion-diff-reject proposal))
                     (lambda (proposal) (qwen-companion-test-close proposal))))
    (qwen-companion-review-ediff-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
      (split-window-right)
      (set-window-buffer (next-window) (get-buffer-create "*beside*"))
      (qwen-companion-review-ediff-test-with-tabs
        (let ((first (qwen-companion-test-propose "a.txt" "two\n"))
              (second (qwen-companion-test-propose "b.txt" "two\n" :session "session-2")))
          (qwen-companion-test-show first)
          (tab-bar-select-tab 2)
          (qwen-companion-test-show second)
          (should (get-buffer-window "*qwen-companion proposal: b.txt*"))
          (funcall end first)
          (should (get-buffer-window "*qwen-companion proposal: b.txt*"))
          (tab-bar-select-tab 1)
          (should (equal '("*terminal*" "*beside*") (qwen-companion-test-shown)))
          (should (equal "*terminal*" (qwen-companion-test-selected)))
          (funcall end second)
          (should (equal '("*terminal*" "*beside*") (qwen-companion-test-shown)))
          (tab-bar-select-tab 2)
          (should (equal '("*other*") (qwen-companion-test-shown)))
          (should-not ediff-session-registry))))))

(ert-deftest qwen-companion-review-ediff-test-reviews-end-out-of-order ()
  "One put aside for the next; each end leaves the windows as they were."
  (dolist (first-to-end '(0 1))
    (qwen-companion-review-ediff-test-with '(("a.txt" "one\n") ("b.txt" "one\n"))
      (split-window-right)
      (set-window-buffer (next-window) (get-buffer-create "*beside*"))
      (let* ((before (current-window-configuration))
             (proposals (list (qwen-companion-test-propose "a.txt" "two\n")
                              (qwen-companion-test-propose "b.txt" "two\n"))))
        (qwen-companion-diff-open (nth 0 proposals))
        (qwen-companion-diff-open (nth 1 proposals))
        (should (eq (nth 1 proposals) (qwen-companion-review-shown)))
        (qwen-companion-test-close (nth first-to-end proposals))
        (qwen-companion-diff-reject (nth (- 1 first-to-end) proposals))
        (should (qwen-companion-test-same-windows-p before))))))

(defun qwen-companion-review-ediff-test--windows ()
  "Return all about the windows that a user may notice."
  (mapcar (lambda (window)
            (list window (buffer-name (window-buffer window))
                  (window-edges window) (window-start window)
                  (window-point window) (window-hscroll window)
                  (window-dedicated-p window)
                  (window-parameter window 'test)
                  (eq window (selected-window))))
          (window-list nil 'no-minibuffer (frame-first-window))))

(defun qwen-companion-review-ediff-test--scroll-two-windows ()
  "Show a long text in two more windows, each at a place of its own."
  (let* ((long (get-buffer-create "*long*"))
         (second (split-window nil 25 'right))
         (third (split-window second 10 'below)))
    (with-current-buffer long
      (dotimes (number 500) (insert (format "%d\n" number))))
    (cl-loop for (window start) in `((,second 101) (,third 1001))
             do (set-window-buffer window long)
             (set-window-start window start)
             (set-window-point window (+ start 7))
             (set-window-hscroll window 2)
             (set-window-parameter window 'test window))
    (set-window-dedicated-p second t)
    (select-window third)))

(ert-deftest qwen-companion-review-ediff-test-windows-come-back-exactly ()
  "Sizes, starts, points, dedication, parameters and the selected window.
Both sides are on the screen in any frame that can show them, and so is a
terminal that is dedicated or in a side window."
  (pcase-dolist (`(,width ,height ,prepare ,layouts ,stays)
                 `((120 40 ,#'qwen-companion-review-ediff-test--scroll-two-windows)
                   (120 40 ,(lambda () (set-window-dedicated-p (selected-window) t)) nil t)
                   (80 10 ,(lambda () (set-window-dedicated-p (selected-window) t)))
                   (120 40 ,(lambda ()
                              (switch-to-buffer "*scratch*")
                              (select-window (display-buffer-in-side-window
                                              (get-buffer "*terminal*") '((side . right)))))
                        nil t)
                   ;; Side windows that leave little room.
                   ,@(mapcar (lambda (select)
                               `(120 40 ,(lambda ()
                                           (let ((side (display-buffer-in-side-window
                                                        (get-buffer-create "*side*")
                                                        '((side . bottom) (window-height . 26)))))
                                             (when select
                                               (select-window side))))))
                             '(nil t))
                   ,@(mapcar (lambda (size) `(,@size ignore (auto side-by-side stacked)))
                             '((80 10) (20 40) (12 12) (200 9)))))
    (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
      (qwen-companion-test-with-terminal "session-1"
        (set-frame-size (selected-frame) width height)
        (funcall prepare)
        (dolist (qwen-companion-ediff-layout (or layouts (list qwen-companion-ediff-layout)))
          (dolist (select '(nil t))
            (let ((before (qwen-companion-review-ediff-test--windows))
                  (selected (selected-window)))
              (qwen-companion-test-show (qwen-companion-test-propose "a.txt" "two\n") select)
              (dolist (name '("*qwen-companion disk: a.txt*" "*qwen-companion proposal: a.txt*" "*Ediff Control Panel*"))
                (should (get-buffer-window name)))
              (when stays
                (should (get-buffer-window "*terminal*"))
                (should (or select (eq selected (selected-window)))))
              (qwen-companion-diff-reject)
              (should (equal before (qwen-companion-review-ediff-test--windows))))))))))

(ert-deftest qwen-companion-review-ediff-test-parts-of-a-review-left-in-windows ()
  "Its end restores all windows, whichever of its own the user has closed."
  (dolist (gone '("*Ediff Control Panel*" "*qwen-companion disk: a.txt*" "*terminal*"))
    (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
      (qwen-companion-test-show (qwen-companion-test-propose "a.txt" "two\n"))
      (delete-window (get-buffer-window gone))
      (should (qwen-companion-review-shown))
      (qwen-companion-diff-accept)
      (should (equal '("*terminal*") (qwen-companion-test-shown))))))

(defun qwen-companion-review-ediff-test--type (name text)
  "Append TEXT to the file NAME in its buffer, unsaved; return the buffer."
  (with-current-buffer (find-file-noselect name)
    (qwen-companion-test-append text)
    (current-buffer)))

(ert-deftest qwen-companion-review-ediff-test-unsaved-text-is-said-as-long-as-it-is ()
  "Both header lines, the control panel and the list mention unsaved text."
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
    (let* ((said (lambda (proposal)
                   (qwen-companion-review-check-unsaved)
                   (mapcar (lambda (text) (and (string-match-p "unsaved text" text) t))
                           (list (qwen-companion-test-header
                                  (qwen-companion-proposal-disk-buffer proposal))
                                 (qwen-companion-test-header
                                  (qwen-companion-proposal-buffer proposal))
                                 (qwen-companion-test-buffer-text "*Ediff Control Panel*")
                                 (qwen-companion-review-list--state-text proposal)))))
           (proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (qwen-companion-test-show proposal)
      (should (equal '(nil nil nil nil) (funcall said proposal)))
      (should-error (qwen-companion-diff-show-unsaved) :type 'user-error)
      (with-current-buffer (qwen-companion-review-ediff-test--type "a.txt" "mine\n")
        (should (equal '(t t t t) (funcall said proposal)))
        (save-buffer)
        (should (equal '(nil nil nil nil) (funcall said proposal)))
        ;; What was saved is what the proposal is compared with now.
        (should (equal "one\nmine\n"
                       (qwen-companion-test-buffer-text (qwen-companion-proposal-disk-buffer proposal))))))))

(ert-deftest qwen-companion-review-ediff-test-unsaved-text-is-noticed-when-idle ()
  (qwen-companion-review-ediff-test-with-one
    (qwen-companion-review-ediff-test--type "a.txt" "mine\n")
    (should-not (qwen-companion-proposal-unsaved proposal))
    (timer-event-handler qwen-companion-review--unsaved-timer)
    (should (qwen-companion-proposal-unsaved proposal))
    (with-current-buffer "a.txt"
      (save-buffer))
    (qwen-companion-test-wait-for (not (qwen-companion-proposal-unsaved proposal)))
    (qwen-companion-diff-reject proposal)
    (should-not qwen-companion-review--unsaved-timer)
    (dolist (hook '(after-save-hook after-revert-hook))
      (should-not (memq #'qwen-companion-review--check-unsaved-soon (default-value hook))))))

(ert-deftest qwen-companion-review-ediff-test-third-party ()
  "The same key shows it and takes it out; edits and windows stay."
  (dolist (width '(120 200))
    (qwen-companion-review-ediff-test-with '(("a.txt" "one\ntwo\nthree\n"))
      (set-frame-size (selected-frame) width 40)
      (split-window-right)
      (set-window-buffer (next-window) (get-buffer-create "*other*"))
      (let* ((before (current-window-configuration))
             ;; The user's, with which Ediff does not understand diff3.
             (ediff-actual-diff3-options "-A")
             (mine (qwen-companion-review-ediff-test--type "a.txt" "mine\n"))
             (proposal (qwen-companion-test-propose "a.txt" "one\n2\nthree\n"))
             (two '("*qwen-companion disk: a.txt*"
                    "*qwen-companion proposal: a.txt*"
                    "*Ediff Control Panel*"
                    "*terminal*"))
             (three '("*qwen-companion disk: a.txt*"
                      "*qwen-companion proposal: a.txt*"
                      "*qwen-companion yours: a.txt*"
                      "*Ediff Control Panel*"
                      "*terminal*")))
        (qwen-companion-test-show proposal)
        (select-window (get-buffer-window "*Ediff Control Panel*"))
        (qwen-companion-test-edit proposal "edit\n")
        (dolist (shown (list three two three))
          (should (eq #'qwen-companion-diff-show-unsaved (key-binding "u")))
          (call-interactively (key-binding "u"))
          (should (equal shown (qwen-companion-test-shown)))
          (should (equal "*Ediff Control Panel*" (qwen-companion-test-selected)))
          (should (= 1 (length ediff-session-registry)))
          (should (eq 'shown (qwen-companion-proposal-state proposal)))
          (should (equal "one\n2\nthree\nedit\n"
                         (qwen-companion-test-buffer-text (qwen-companion-proposal-buffer proposal)))))
        (with-current-buffer "*qwen-companion yours: a.txt*"
          (should (equal "one\ntwo\nthree\nmine\n" (buffer-string)))
          (should buffer-read-only)
          (should (eq #'qwen-companion-diff-show-unsaved (key-binding (kbd "C-c C-u"))))
          (should-not (string-match-p "changed since" (qwen-companion-test-header)))
          (qwen-companion-review-ediff-test--type "a.txt" "more\n")
          (should (string-match-p "changed since" (qwen-companion-test-header))))
        (qwen-companion-diff-accept)
        (should (equal "one\n2\nthree\nedit\n" (cadar (qwen-companion-test-outcomes))))
        (should (qwen-companion-test-same-windows-p before))
        (should-not ediff-session-registry)
        (should-not (get-buffer "*qwen-companion yours: a.txt*"))
        (should (equal "one\ntwo\nthree\nmine\nmore\n" (qwen-companion-test-buffer-text mine)))))))

(ert-deftest qwen-companion-review-ediff-test-third-party-however-it-ends ()
  "Put aside it comes back as it was, and no way out leaves anything behind."
  (dolist (end (list #'qwen-companion-diff-reject
                     #'qwen-companion-proposal-end-all
                     (lambda ()
                       (kill-buffer "*qwen-companion disk: a.txt*")
                       (should (equal '("*terminal*") (qwen-companion-test-shown)))
                       (qwen-companion-diff-reject))
                     (lambda ()
                       (kill-buffer "*qwen-companion yours: a.txt*")
                       (should (get-buffer-window "*Ediff Control Panel*"))
                       (should (= 1 (length (qwen-companion-proposals))))
                       (qwen-companion-diff-reject))))
    (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
      (let ((before (current-window-configuration)))
        (qwen-companion-review-ediff-test--type "a.txt" "mine\n")
        (qwen-companion-test-propose "a.txt" "two\n")
        ;; Not on the screen yet: it is shown with all three.
        (qwen-companion-diff-show-unsaved)
        (should (= 4 (length (qwen-companion-test-shown))))
        (qwen-companion-diff-bury)
        (should (equal '("*terminal*") (qwen-companion-test-shown)))
        (qwen-companion-diff-open)
        (should (= 4 (length (qwen-companion-test-shown))))
        (funcall end)
        (should (qwen-companion-test-same-windows-p before))
        (should-not ediff-session-registry)
        (should-not (get-buffer "*qwen-companion yours: a.txt*"))))))

(ert-deftest qwen-companion-review-ediff-test-third-party-while-other-things-are-shown ()
  "It brings the review back; taken out meanwhile, that comes with two again."
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
    (qwen-companion-review-ediff-test--type "a.txt" "mine\n")
    (let* ((proposal (qwen-companion-test-propose "a.txt" "two\n"))
           (leave (lambda ()
                    (switch-to-buffer (get-buffer-create "*other*"))
                    (delete-other-windows)))
           (third-p (lambda ()
                      (and (get-buffer-window "*qwen-companion disk: a.txt*")
                           (get-buffer-window "*qwen-companion yours: a.txt*")
                           t))))
      (qwen-companion-test-show proposal)
      (funcall leave)
      (qwen-companion-diff-show-unsaved)
      (should (funcall third-p))
      (funcall leave)
      (qwen-companion-diff-show-unsaved)
      (should (equal '("*other*") (qwen-companion-test-shown)))
      (qwen-companion-diff-open)
      (should (get-buffer-window "*qwen-companion disk: a.txt*"))
      (should-not (funcall third-p))
      (should (= 1 (length ediff-session-registry))))))

(ert-deftest qwen-companion-review-ediff-test-third-party-in-a-small-frame ()
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
    (set-frame-size (selected-frame) 80 16)
    (qwen-companion-review-ediff-test--type "a.txt" "mine\n")
    (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (qwen-companion-test-show proposal t)
      (qwen-companion-diff-show-unsaved)
      (dolist (kind '("disk" "proposal" "yours"))
        (should (get-buffer-window (format "*qwen-companion %s: a.txt*" kind))))
      (qwen-companion-diff-reject)
      (should (equal '("*terminal*") (qwen-companion-test-shown))))))

(ert-deftest qwen-companion-review-ediff-test-taking-unsaved-text-over ()
  "Ediff's own copying takes a change of the user's into the proposal."
  (qwen-companion-review-ediff-test-with '(("a.txt" "1\n2\n3\n4\n5\n"))
    (with-current-buffer (find-file-noselect "a.txt")
      (goto-char (point-min))
      (insert "mine\n"))
    (qwen-companion-test-propose "a.txt" "1\n2\n3\n4\nFIVE\n")
    (qwen-companion-diff-show-unsaved)
    (call-interactively (key-binding "cb"))
    (qwen-companion-diff-accept)
    (should (equal "mine\n1\n2\n3\n4\nFIVE\n" (cadar (qwen-companion-test-outcomes))))))

;;; Where it opens, and what is left

(ert-deftest qwen-companion-review-ediff-test-by-command-from-the-minibuffer ()
  "With a recursive minibuffer, the command takes windows of the frame."
  (qwen-companion-review-ediff-test-with '(("a.txt" "one\n"))
    (let ((before (current-window-configuration)))
      (dolist (style '(ediff unified))
        (let ((qwen-companion-diff-style style)
              (proposal (qwen-companion-test-propose "a.txt" "two\n")))
          (select-window (minibuffer-window))
          (qwen-companion-test-silent
            (cl-letf (((symbol-function 'ediff-next-difference) #'ignore)
                      ((symbol-function 'ediff-recenter) #'ignore))
              (let ((said (qwen-companion-test-messages
                            (qwen-companion-diff-open proposal))))
                (should-not (string-match-p "cannot show" said)))))
          (should (eq proposal (qwen-companion-review-shown)))
          (should-not (window-minibuffer-p))
          (qwen-companion-diff-reject proposal)
          (should-not (qwen-companion-proposals))
          (set-window-configuration before))))))

(ert-deftest qwen-companion-review-ediff-test-a-larger-frame-where-there-is-no-room ()
  (qwen-companion-review-ediff-test-with-one
    (let ((small (selected-frame)))
      (pcase-dolist (`(,height ,sizes ,chosen)
                     ;; The larger ones: WIDTH, HEIGHT, and how visible.
                     '((10 ((large 100 50 t) (larger 120 50 t) (hidden 200 60 icon)) larger)
                       (10 ((short 200 12 t)) nil)
                       (10 ((narrow 40 50 t)) nil)
                       (30 ((larger 120 50 t)) nil)))
        (let ((size (lambda (position default)
                      (lambda (&optional frame)
                        (if (assq frame sizes) (nth position (assq frame sizes)) default)))))
          (cl-letf (((symbol-function 'frame-list) (lambda () (cons small (mapcar #'car sizes))))
                    ((symbol-function 'frame-width) (funcall size 1 80))
                    ((symbol-function 'frame-height) (funcall size 2 height))
                    ((symbol-function 'frame-visible-p) (funcall size 3 t))
                    ((symbol-function 'frame-terminal) #'ignore)
                    ((symbol-function 'tty-top-frame) #'ignore)
                    ((symbol-function 'frame-parent) #'ignore)
                    ((symbol-function 'frame-parameter) #'ignore)
                    ((symbol-function 'qwen-companion-review-arrival-frame) #'ignore))
            (should (eq (or chosen small) (qwen-companion-review-windows-frame proposal)))))))))

(ert-deftest qwen-companion-review-ediff-test-ends-while-it-is-being-shown ()
  "Ediff lets processes run: the CLI may be answered meanwhile."
  (dolist (hook '(ediff-mode-hook ediff-startup-hook ediff-before-setup-windows-hook))
    (qwen-companion-review-ediff-test-with-one
      (let* ((buffers (list (qwen-companion-proposal-buffer proposal)))
             (said (cl-progv (list hook)
                       (list (list (lambda () (qwen-companion-test-close proposal))))
                     (qwen-companion-test-messages (qwen-companion-test-show proposal)))))
        (should-not (string-match-p "cannot show" said))
        (should (eq 'closed (qwen-companion-proposal-state proposal)))
        (should-not (cl-some #'buffer-live-p buffers))
        (should-not (get-buffer "*Ediff Control Panel*"))
        (should-not ediff-session-registry)
        (should (equal '("*terminal*") (qwen-companion-test-shown)))))))

(ert-deftest qwen-companion-review-ediff-test-unsaved-text-before-ediff-has-compared ()
  "The control panel cannot be drawn yet."
  (qwen-companion-review-ediff-test-with '(("a.el" "one\n"))
    (let* ((proposal (qwen-companion-test-propose "a.el" "two\n"))
           (ediff-before-setup-windows-hook
            (list (lambda ()
                    (let ((ediff-number-of-differences nil))
                      (qwen-companion-review-unsaved-changed 'ediff proposal)
                      (qwen-companion-review-refresh 'ediff proposal))))))
      (should-not (string-match-p "cannot show"
                                  (qwen-companion-test-messages
                                    (qwen-companion-test-show proposal))))
      (should (eq proposal (qwen-companion-review-shown))))))

(ert-deftest qwen-companion-review-ediff-test-keys-that-come-too-late ()
  "Keys typed for a review that has just ended do nothing elsewhere."
  (dolist (end (list #'qwen-companion-proposal-on-orphan #'qwen-companion-proposal-on-close))
    (dolist (key '("C-c C-c" "C-c C-k" "x"))
      (qwen-companion-review-ediff-test-with-one
        (let* ((pressed nil)
               (map (make-sparse-keymap))
               (press (lambda () (interactive) (push (this-command-keys) pressed))))
          (define-key map (kbd key) press)
          (use-local-map map)
          (qwen-companion-test-show proposal t)
          (should (eq proposal (buffer-local-value 'qwen-companion-proposal-current
                                                   (window-buffer))))
          (funcall end (list :id (qwen-companion-proposal-id proposal)))
          (should (equal "*terminal*" (qwen-companion-test-selected)))
          (let ((said (qwen-companion-test-messages (execute-kbd-macro (kbd key)))))
            (should (eq (equal key "x") (and pressed t)))
            (unless (equal key "x")
              (should (string-match-p "a\\.txt ended before your answer" said))))
          ;; Only the next key.
          (execute-kbd-macro (kbd key))
          (should pressed))))))

(provide 'qwen-companion-review-ediff-test)
;;; qwen-companion-review-ediff-test.el ends here
