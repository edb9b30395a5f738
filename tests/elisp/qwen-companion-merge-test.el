;;; qwen-companion-merge-test.el --- Tests of comparing and changing texts  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(defun qwen-companion-merge-test--buffer (text)
  "Return a new buffer with TEXT."
  (with-current-buffer (generate-new-buffer " *texts test*")
    (insert text)
    (current-buffer)))

(defun qwen-companion-merge-test--compare (old new &optional meanwhile)
  "Return the edits between OLD and NEW, texts or buffers.
The function MEANWHILE is called before the answer comes."
  (let ((answer 'none))
    (qwen-companion-merge-compare (if (bufferp old) old (qwen-companion-merge-test--buffer old))
                                  (if (bufferp new) new (qwen-companion-merge-test--buffer new))
                                  (lambda (hunks) (setq answer hunks)))
    (should (eq answer 'none))
    (when meanwhile
      (funcall meanwhile))
    (qwen-companion-test-wait-for (not (eq answer 'none)))
    answer))

(defun qwen-companion-merge-test--merge (base mine theirs)
  "Merge the texts BASE (or nil), MINE and THEIRS.
Return (RESULT MERGED), the text it makes of MINE and the answer."
  (let* ((answer 'none)
         (mine-buffer (qwen-companion-merge-test--buffer mine))
         (theirs-buffer (qwen-companion-merge-test--buffer theirs)))
    (qwen-companion-merge-texts base mine-buffer theirs-buffer
                                '("mine" "base" "theirs")
                                (lambda (merged) (setq answer merged)))
    (qwen-companion-test-wait-for (not (eq answer 'none)))
    (and answer
         (with-current-buffer mine-buffer
           (qwen-companion-merge-apply answer theirs-buffer)
           (list (buffer-string) answer)))))

(defmacro qwen-companion-merge-test-with-process (&rest body)
  "Run BODY with a Python process that is connected."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-process
     (qwen-companion-mode 1)
     (qwen-companion-test-wait-for (qwen-companion-backend-connected-p))
     ,@body))

(ert-deftest qwen-companion-merge-test-the-real-process-compares-and-merges ()
  (qwen-companion-merge-test-with-process
    (should (equal '((2 1 2 1) (4 0 4 1))
                   (qwen-companion-merge-test--compare "a\nb\nc\n" "a\nB\nc\nd")))
    (should-not (qwen-companion-merge-test--compare "a\n" "a\n"))
    (should (equal "a\nb\nC\n"
                   (car (qwen-companion-merge-test--merge nil "a\nB\nc\n" "a\nb\nC\n"))))
    (pcase-let ((`(,text ,merged)
                 (qwen-companion-merge-test--merge "a\nb\nc\n" "A\nb\nc\n" "a\nb\nC\n")))
      (should (equal "A\nb\nC\n" text))
      (should (= 0 (qwen-companion-merge-result-conflicts merged))))
    (pcase-let ((`(,text ,merged) (qwen-companion-merge-test--merge "a\n" "b" "c\n")))
      (should (equal "<<<<<<< mine\nb\n||||||| base\na\n=======\nc\n>>>>>>> theirs\n" text))
      (should (= 1 (qwen-companion-merge-result-conflicts merged))))))


;;; Applying

(defun qwen-companion-merge-test--merged (text changes)
  "Return (MERGED NEW) that makes CHANGES in TEXT.
CHANGES is a list of (FROM TO STRING), offsets from 0, in order."
  (let ((new "") (end 0) edits)
    (pcase-dolist (`(,from ,to ,string) changes)
      (setq new (concat new (substring text end from)) end to)
      (push (list from to (length new) (+ (length new) (length string))) edits)
      (setq new (concat new string)))
    (list (make-qwen-companion-merge-result :edits (vconcat (apply #'append (nreverse edits))))
          (concat new (substring text end)))))

(defun qwen-companion-merge-test--apply (&rest changes)
  "Make CHANGES in the current buffer, see `qwen-companion-merge-test--merged'.
Check that the text is then what it should be, and return it."
  (pcase-let* ((text (save-restriction (widen) (buffer-string)))
               (`(,merged ,new) (qwen-companion-merge-test--merged text changes))
               (theirs (qwen-companion-merge-test--buffer new)))
    (qwen-companion-merge-apply merged theirs)
    (kill-buffer theirs)
    (save-restriction
      (widen)
      (should (equal new (buffer-string))))
    new))

(defmacro qwen-companion-merge-test--with (text &rest body)
  "Run BODY in a buffer with TEXT that records undo information."
  (declare (indent 1) (debug t))
  `(with-temp-buffer
     (insert ,text)
     (buffer-enable-undo)
     (setq buffer-undo-list nil)
     (goto-char (point-min))
     ,@body))

(defconst qwen-companion-merge-test--some qwen-companion-merge--single-changes
  "Up to so many changes are made one by one.")

(defun qwen-companion-merge-test--asked-p ()
  "Say whether an answer of the process is still awaited."
  qwen-companion-backend--requests)

(defun qwen-companion-merge-test--at (string)
  "Return the position of STRING in the current buffer."
  (save-excursion
    (qwen-companion-test-go-to string)
    (match-beginning 0)))

(defun qwen-companion-merge-test--lines (count)
  "Return COUNT lines and the changes that rename a word in each."
  (let ((lines (mapcar (lambda (number) (format "%06d an old word\n" number))
                       (number-sequence 1 count))))
    (list (apply #'concat lines)
          (cl-loop for line in lines
                   for start = 0 then (+ start (length line))
                   collect (list (+ start 10) (+ start 13) "younger")))))

(ert-deftest qwen-companion-merge-test-one-undo-takes-all-back-and-one-redo-restores-it ()
  (dolist (count (list 1 5 (* 3 qwen-companion-merge-test--some)))
    (dolist (history '(nil t))
      (pcase-let ((`(,text ,changes) (qwen-companion-merge-test--lines count)))
        (qwen-companion-merge-test--with text
          (when history
            (insert "typed ")
            (undo-boundary)
            (pcase-dolist ((and change `(,from ,to ,_)) changes)
              (setcar change (+ 6 from))
              (setcar (cdr change) (+ 6 to))))
          (goto-char 15)
          (let ((before (buffer-string))
                after)
            (qwen-companion-test-silent (setq after (apply #'qwen-companion-merge-test--apply changes)))
            (qwen-companion-test-undo)
            (should (equal before (buffer-string)))
            (should (= 15 (point)))
            (qwen-companion-test-undo)
            (should (equal after (buffer-string)))
            (qwen-companion-test-undo)
            (should (equal before (buffer-string)))))))))

(ert-deftest qwen-companion-merge-test-typing-before-and-after-are-steps-of-their-own ()
  (qwen-companion-merge-test--with "one\n"
    (insert "a")
    (qwen-companion-merge-test--apply '(2 4 "NE"))
    (goto-char (point-min))
    (insert "b")
    (qwen-companion-test-undo)
    (should (equal "aoNE\n" (buffer-string)))
    (let ((last-command 'undo)
          (inhibit-message t))
      (undo-more 1)
      (should (equal "aone\n" (buffer-string)))
      (undo-more 1)
      (should (equal "one\n" (buffer-string))))))

(ert-deftest qwen-companion-merge-test-random-changes-and-back ()
  (random "texts")
  (dotimes (_ 200)
    (let* ((text (mapconcat (lambda (_) (nth (random 5) '("a" "b" "\n" "é" "😀")))
                            (number-sequence 1 60) ""))
           (end 0)
           (changes (cl-loop for from = (+ end (random 6))
                             for to = (+ from (random 4))
                             while (<= to 60)
                             for string = (nth (random 4) '("" "x" "y\n" "\nzz"))
                             unless (and (= from to) (equal string ""))
                             collect (list from to string)
                             do (setq end to)))
           (qwen-companion-merge--single-changes (* 20 (random 2))))
      (qwen-companion-merge-test--with text
        (dotimes (_ 4)
          (make-overlay (1+ (random 60)) (1+ (random 60)) nil
                        (zerop (random 2)) (zerop (random 2))))
        (goto-char (1+ (random 60)))
        (let ((after (apply #'qwen-companion-merge-test--apply changes)))
          (when changes
            (qwen-companion-test-undo)
            (should (equal text (buffer-string)))
            (qwen-companion-test-undo)
            (should (equal after (buffer-string)))))))))

(ert-deftest qwen-companion-merge-test-point-and-markers-stay-with-their-text ()
  (dolist (place '("two" "\nthree" "three" "ree" "four"))
    (dolist (changes
             '(((4 4 "new\nlines\n"))             ; before the line
               ((3 3 "\nnew"))                    ; the same at the end of that before
               ((0 0 "  ") (4 4 "  ") (8 8 "  ") (14 14 "  ")) ; indented
               ((0 3 "1") (18 18 "s"))            ; words changed
               ((0 4 ""))))                       ; lines removed
      (qwen-companion-merge-test--with "one\ntwo\nthree\nfour\n"
        (goto-char (qwen-companion-merge-test--at place))
        (let ((marker (point-marker)))
          (apply #'qwen-companion-merge-test--apply changes)
          (dolist (position (list (point) marker))
            (goto-char position)
            (should (if (string-prefix-p "\n" place)
                        (eolp)
                      (looking-at-p (concat " *" place))))))))))

(ert-deftest qwen-companion-merge-test-overlays-stay-on-their-text ()
  (qwen-companion-merge-test--with "head\n  body\n  more\nnext\n"
    (cl-flet ((overlay (from to &optional front rear)
                (let ((overlay (make-overlay (qwen-companion-merge-test--at from)
                                             (qwen-companion-merge-test--at to)
                                             nil front rear)))
                  (overlay-put overlay 'evaporate t)
                  overlay))
              (text (overlay)
                (and (overlay-buffer overlay)
                     (buffer-substring (overlay-start overlay) (overlay-end overlay)))))
      (let ((fold (overlay "\n  body" "\nnext" t))
            (word (overlay "body" "\n  more"))
            (greedy (overlay "body" "\n  more" t t))
            (beside (overlay "  body" "body" nil t))
            (line (make-overlay 20 24))
            (whole (overlay "  more" "next")))
        (qwen-companion-merge-test--apply '(5 5 "  first\n") '(7 11 "BODIES") '(19 19 "between\n"))
        (should (equal "\n  first\n  BODIES\n  more" (text fold)))
        (should (equal "BODIES" (text word)))
        (should (equal "BODIES" (text greedy)))
        (should (equal "  " (text beside)))
        (should (equal "next" (text line)))
        (should (equal "  more\n" (text whole)))))))

(ert-deftest qwen-companion-merge-test-narrowing-stays ()
  "So does point inside of a changed word."
  (qwen-companion-merge-test--with "call(old_name)\n"
    (goto-char 8)
    (qwen-companion-merge-test--apply '(5 8 "brand_new"))
    (should (looking-at-p "and_new_name")))
  (qwen-companion-merge-test--with "a\nb\nc\nd\n"
    (narrow-to-region 3 7)
    (qwen-companion-merge-test--apply '(0 1 "A") '(2 2 "x\n") '(4 5 "C") '(6 6 "y\n"))
    (should (equal "b\nC\n" (buffer-string)))))

(ert-deftest qwen-companion-merge-test-windows-stay-where-they-are ()
  (pcase-let ((`(,text ,changes) (qwen-companion-merge-test--lines 300)))
    (save-window-excursion
      (qwen-companion-merge-test--with text
        (delete-other-windows)
        (switch-to-buffer (current-buffer))
        (let* ((other (split-window))
               (places `((,(selected-window) "000100" "000105 an ")
                         (,other "000200" "ounger word\n000204")))
               (fold (1- (qwen-companion-merge-test--at "000200"))))
          (make-overlay fold (1+ fold))
          (set-window-start (selected-window) (qwen-companion-merge-test--at "000100"))
          (set-window-point (selected-window) (qwen-companion-merge-test--at "000105 an "))
          (set-window-start other (qwen-companion-merge-test--at "000200"))
          (set-window-point other (qwen-companion-merge-test--at "ld word\n000204"))
          (apply #'qwen-companion-merge-test--apply
                 (append '((0 0 "new\nlines\n"))
                         (seq-take changes 199)
                         (list (list fold fold "before 200\n"))
                         (seq-drop changes 199)))
          (pcase-dolist (`(,window ,start ,point) places)
            (should (= (window-start window) (qwen-companion-merge-test--at start)))
            (should (= (window-point window) (qwen-companion-merge-test--at point)))))))))

(ert-deftest qwen-companion-merge-test-read-only-is-no-hindrance ()
  "The region stays active, too."
  (qwen-companion-merge-test--with (concat "a" (propertize "b" 'read-only t) "c two\n")
    (setq buffer-read-only t)
    (let ((transient-mark-mode t)
          deactivate-mark)
      (push-mark 5 t t)
      (qwen-companion-merge-test--apply '(1 2 ""))
      (should buffer-read-only)
      (should-not deactivate-mark)
      (should (= 4 (mark))))))

(ert-deftest qwen-companion-merge-test-undo-that-is-off-stays-off ()
  (dolist (count (list 1 (* 2 qwen-companion-merge-test--some)))
    (pcase-let ((`(,text ,changes) (qwen-companion-merge-test--lines count)))
      (qwen-companion-merge-test--with text
        (buffer-disable-undo)
        (apply #'qwen-companion-merge-test--apply changes)
        (should (eq t buffer-undo-list))))))

(ert-deftest qwen-companion-merge-test-nothing-is-asked-about-the-file ()
  "No question comes up about a file written meanwhile or locked by another Emacs."
  (qwen-companion-test-with-files '(("f.txt" "one\n"))
    (let ((create-lockfiles t))
      (with-current-buffer (find-file-noselect "f.txt")
        (write-region "other\n" nil "f.txt" nil 'silent)
        (set-file-times "f.txt" (time-add nil 60))
        (make-symbolic-link "somebody@else.1" ".#f.txt")
        (cl-letf (((symbol-function 'ask-user-about-supersession-threat)
                   (lambda (_) (ert-fail "Asked about the file")))
                  ((symbol-function 'ask-user-about-lock)
                   (lambda (&rest _) (ert-fail "Asked about the lock"))))
          (qwen-companion-merge-test--apply '(0 1 "O")))
        (should buffer-file-truename)))))

(ert-deftest qwen-companion-merge-test-change-hooks-hear-of-all ()
  "They run for each of a few changes, and once for many changes together."
  (dolist (count (list 3 (1+ qwen-companion-merge-test--some)))
    (pcase-let ((`(,text ,changes) (qwen-companion-merge-test--lines count)))
      (qwen-companion-merge-test--with text
        (let ((mirror text) (calls 0) before)
          (add-hook 'before-change-functions
                    (lambda (start end) (setq before (list start end)))
                    nil t)
          (add-hook 'after-change-functions
                    (lambda (start end length)
                      (cl-incf calls)
                      (should (<= (car before) start))
                      (should (<= (+ start length) (cadr before)))
                      (setq mirror (concat (substring mirror 0 (1- start))
                                           (buffer-substring start end)
                                           (substring mirror (+ (1- start) length)))))
                    nil t)
          (apply #'qwen-companion-merge-test--apply changes)
          (should (equal mirror (buffer-string)))
          (should (= calls (if (= count 3) 6 1)))
          (qwen-companion-test-undo)
          (should (equal mirror (buffer-string))))))))

(ert-deftest qwen-companion-merge-test-all-or-nothing ()
  "An error in a hook of somebody else leaves the text as it was."
  (pcase-let* ((text "a\nb\nc\n")
               (`(,merged ,new) (qwen-companion-merge-test--merged text '((0 1 "A") (4 5 "C")))))
    (qwen-companion-merge-test--with text
      (narrow-to-region 3 4)
      (add-hook 'after-change-functions
                (lambda (start &rest _) (when (= start 1) (error "Broken")))
                nil t)
      (let ((theirs (qwen-companion-merge-test--buffer new)))
        (should-error (qwen-companion-merge-apply merged theirs))
        (should (equal "b" (buffer-string)))
        (widen)
        (should (equal text (buffer-string)))))))

;;; Requests

(ert-deftest qwen-companion-merge-test-without-a-process-it-fails-soon ()
  (should (eq 'failed (qwen-companion-merge-test--compare "a\n" "b\n")))
  (should-not (qwen-companion-merge-test--merge nil "a\n" "b\n"))
  (should-not (qwen-companion-merge-test--asked-p)))

(ert-deftest qwen-companion-merge-test-text-that-is-not-unicode-fails ()
  "Text that is not Unicode fails, and the connection lives on."
  (qwen-companion-merge-test-with-process
    (let ((unibyte (qwen-companion-merge-test--buffer "")))
      (with-current-buffer unibyte
        (set-buffer-multibyte nil)
        (insert "\303\251"))
      (dolist (text (list (string (unibyte-char-to-multibyte #xe9))
                          (string #x110000)
                          (string #xd83d #xde00)
                          (make-string 100000 #xd83d)
                          (qwen-companion-test-buffer-text unibyte)))
        (should-not (qwen-companion-merge-test--merge text "a" "b"))
        (should-not (qwen-companion-merge-test--merge nil text "b")))
      (should (eq 'failed (qwen-companion-merge-test--compare unibyte unibyte))))
    (should (equal '((1 1 1 1)) (qwen-companion-merge-test--compare "é" "😀")))))

(ert-deftest qwen-companion-merge-test-long-texts-go-by-file-and-nothing-stays ()
  (qwen-companion-merge-test-with-process
    (let* ((mine (concat "first\n\n" (car (qwen-companion-merge-test--lines 5000))))
           (theirs (string-replace "old" "younger" mine)))
      (should (equal theirs (car (qwen-companion-merge-test--merge nil mine theirs))))
      ;; The result is neither of the two.
      (should (equal (concat "FIRST" (substring theirs 5))
                     (car (qwen-companion-merge-test--merge
                           mine (concat "FIRST" (substring mine 5))
                           theirs)))))
    (should-not (directory-files (qwen-companion-backend-spool) nil "\\`text-"))
    (should-not (cl-find " *qwen-companion text*" (buffer-list)
                         :key #'buffer-name :test #'string-prefix-p))))

(ert-deftest qwen-companion-merge-test-a-narrowed-buffer-counts-whole ()
  (qwen-companion-merge-test-with-process
    (dolist (size '(1 100000))
      (let* ((tail (concat (make-string size ?x) "\n"))
             (old (qwen-companion-merge-test--buffer (concat "a\nb\n" tail)))
             (new (qwen-companion-merge-test--buffer (concat "A\nb\n" tail))))
        (dolist (buffer (list old new))
          (with-current-buffer buffer (narrow-to-region 3 4)))
        (should (equal '((1 1 1 1)) (qwen-companion-merge-test--compare old new)))
        (should (equal "b" (qwen-companion-test-buffer-text old)))))))

(defun qwen-companion-merge-test--die ()
  "Let the process die with three requests pending; return their failures."
  (let (answers)
    (signal-process (qwen-companion-test-process) 'STOP)
    (dotimes (number 3)
      (qwen-companion-merge-compare
       (qwen-companion-merge-test--buffer (make-string 100000 ?a))
       (qwen-companion-merge-test--buffer "b")
       (lambda (answer) (push (cons number answer) answers))))
    (signal-process (qwen-companion-test-process) 'KILL)
    (qwen-companion-test-wait-for (= 3 (length answers)))
    (sort answers (lambda (a b) (< (car a) (car b))))))

(ert-deftest qwen-companion-merge-test-a-process-that-dies-fails-each-question-once ()
  "Whether there is another one after it or not."
  (qwen-companion-test-with-process
    (let ((failed '((0 . failed) (1 . failed) (2 . failed))))
      (qwen-companion-test-with-restart-limit '(1 . 60)
        (qwen-companion-mode 1)
        (qwen-companion-test-wait-for (qwen-companion-backend-connected-p))
        (should (equal failed (qwen-companion-merge-test--die)))
        (qwen-companion-test-wait-for (qwen-companion-backend-connected-p))
        (should-not (directory-files (qwen-companion-backend-spool) nil "\\`text-"))
        (should (equal '((1 1 1 1)) (qwen-companion-merge-test--compare "a" "b")))
        (should (equal failed (qwen-companion-merge-test--die)))
        (should (eq 'error (qwen-companion-state)))))))

(ert-deftest qwen-companion-merge-test-turning-the-mode-off-drops-the-questions ()
  (qwen-companion-merge-test-with-process
    (let* ((asked (qwen-companion-merge-test--buffer "a"))
           (never (lambda (_) (ert-fail "Called after all"))))
      (signal-process (qwen-companion-test-process) 'STOP)
      (qwen-companion-merge-compare asked asked never)
      (qwen-companion-merge-texts (string #xd83d) asked asked '("" "" "") never)
      (signal-process (qwen-companion-test-process) 'CONT)
      (qwen-companion-mode -1)
      (should-not (qwen-companion-merge-test--asked-p))
      (qwen-companion-test-wait-for (null (qwen-companion-test-processes))))))

(ert-deftest qwen-companion-merge-test-a-lost-file-fails ()
  (qwen-companion-merge-test-with-process
    (signal-process (qwen-companion-test-process) 'STOP)
    (let ((lose (lambda ()
                  (delete-file (car (directory-files (qwen-companion-backend-spool) t "\\`text-")))
                  (signal-process (qwen-companion-test-process) 'CONT))))
      (should (eq 'failed (qwen-companion-merge-test--compare (make-string 100000 ?a) (make-string 100000 ?b) lose)))
      (should-not (directory-files (qwen-companion-backend-spool) nil "\\`text-")))))

(ert-deftest qwen-companion-merge-test-too-large-text-fails ()
  (qwen-companion-merge-test-with-process
    (let ((qwen-companion-merge--size-limit 1000))
      (should (equal '((1 1 1 1)) (qwen-companion-merge-test--compare "a" "b")))
      (should (eq 'failed (qwen-companion-merge-test--compare "a" (make-string 1000 ?b)))))))

(provide 'qwen-companion-merge-test)
;;; qwen-companion-merge-test.el ends here
