;;; changes-fuzz.el --- Random turns, edits and undoing of them  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; emacs -Q --batch -l scripts/checkout.el -L tests/elisp -l tests/fuzz/changes-fuzz.el \
;;   -f changes-fuzz STEPS FROM
;;
;; A file has places that agents write and places that the user edits, with
;; lines between them that stay.  Agents write, the user edits in a buffer or
;; on disk, saves or not, and undoes changes of any turn and brings them back
;; with the keys of the buffer of changes.  A model knows what each place has
;; to hold after each step: it knows nothing of lines or merges.

;;; Code:

(require 'qwen-companion-changes-test-helper)

(defconst changes-fuzz--places 6 "How many places of either kind there are.")

(defconst changes-fuzz--turns 8 "Most turns of a run.")

(cl-defstruct (changes-fuzz--model (:constructor changes-fuzz--make-model))
  "What is to be in the file.
AGENT and USER are vectors of texts: the contents of the places.  WRITES
is a list of (TURN PLACE BEFORE AFTER), newest first.  NUMBER makes lines
unlike any other.  NEWLINE ends the lines on disk."
  agent user writes (number 0) (newline "\n"))

(defvar changes-fuzz--counts nil "How often each way of undoing was tried, an alist.")

(defun changes-fuzz--count (what)
  "Count WHAT, a symbol."
  (cl-incf (alist-get what changes-fuzz--counts 0)))

(defun changes-fuzz--line (model who)
  "Return a new line by WHO for MODEL."
  (format "%s %d\n" who (cl-incf (changes-fuzz--model-number model))))

(defun changes-fuzz--text (model)
  "Return the text that the file has according to MODEL."
  (cl-loop for place below changes-fuzz--places
           concat (aref (changes-fuzz--model-agent model) place)
           concat (format "first of %d\n" place)
           concat (aref (changes-fuzz--model-user model) place)
           concat (format "last of %d\n" place)))

(defun changes-fuzz--bytes (model)
  "Return the bytes of the file according to MODEL."
  (encode-coding-string
   (string-replace "\n" (changes-fuzz--model-newline model) (changes-fuzz--text model))
   'utf-8-unix))

(defun changes-fuzz--buffer ()
  "Return the buffer that visits the file, or nil."
  (find-buffer-visiting "a.txt"))

(defun changes-fuzz--check (model)
  "Fail unless the file, or the buffer with unsaved text, is as in MODEL."
  (let ((buffer (changes-fuzz--buffer)))
    (when buffer
      (should (equal (changes-fuzz--text model)
                     (with-current-buffer buffer (buffer-string)))))
    (unless (and buffer (buffer-modified-p buffer))
      (should (equal (changes-fuzz--bytes model)
                     (qwen-companion-changes-test-bytes "a.txt"))))))

;;; Steps

(defun changes-fuzz--agent-writes (model)
  "Let an agent write some places, also none or several lines of one."
  (when-let* ((buffer (changes-fuzz--buffer)))
    (with-current-buffer buffer
      (when (buffer-modified-p)
        (save-buffer))))
  (let ((turn (format "t%d" (cl-incf (changes-fuzz--model-number model))))
        (agent (changes-fuzz--model-agent model)))
    (dotimes (_ (1+ (random 3)))
      (let* ((place (random changes-fuzz--places))
             (before (aref agent place))
             (after (cl-loop repeat (random 3) concat (changes-fuzz--line model "agent"))))
        (unless (or (equal before after)
                    (cl-find-if (lambda (write) (and (equal turn (car write))
                                                     (eql place (cadr write))))
                                (changes-fuzz--model-writes model)))
          (aset agent place after)
          (push (list turn place before after) (changes-fuzz--model-writes model)))))
    (qwen-companion-changes-test-turn
     turn (list (list "a.txt" (decode-coding-string (changes-fuzz--bytes model) 'utf-8-unix))))
    (when-let* ((buffer (changes-fuzz--buffer)))
      (if (qwen-companion-backend-sessions)
          (qwen-companion-test-wait-for
           (equal (changes-fuzz--text model)
                  (with-current-buffer buffer (buffer-string))))
        (with-current-buffer buffer
          (revert-buffer t t))))))

(defun changes-fuzz--user-edits (model)
  "Let the user edit a place, in the buffer if there is one."
  (let* ((place (random changes-fuzz--places))
         (user (changes-fuzz--model-user model))
         (buffer (changes-fuzz--buffer)))
    (aset user place
          (if (and (zerop (random 3)) (not (string-empty-p (aref user place))))
              ""
            (concat (aref user place) (changes-fuzz--line model "user"))))
    (if (not buffer)
        (qwen-companion-changes-test-write "a.txt" (changes-fuzz--bytes model))
      (with-current-buffer buffer
        (goto-char (point-min))
        (search-forward (format "first of %d\n" place))
        (delete-region (point)
                       (save-excursion (search-forward (format "last of %d\n" place))
                                       (match-beginning 0)))
        (insert (aref user place))
        (when (zerop (random 2))
          (save-buffer))))))

(defun changes-fuzz--visit (_model)
  "Visit the file, or kill its buffer."
  (if-let* ((buffer (changes-fuzz--buffer)))
      (with-current-buffer buffer
        (when (buffer-modified-p)
          (save-buffer))
        (kill-buffer))
    (find-file-noselect "a.txt")))

(defun changes-fuzz--swap (model write key)
  "Press KEY, \"k\" or \"u\", on what WRITE has changed; see that MODEL is right."
  (pcase-let* ((`(,turn ,place ,before ,after) write)
               (agent (changes-fuzz--model-agent model))
               (`(,expected ,wanted) (if (equal key "k")
                                         (list after before)
                                       (list before after)))
               (buffer (changes-fuzz--buffer))
               (disk (qwen-companion-changes-test-bytes "a.txt")))
    (qwen-companion-changes-test-open)
    (qwen-companion-changes--reload t)
    (setq qwen-companion-changes--all t
          qwen-companion-changes--lines 0
          qwen-companion-changes--unfolded
          (list (list 'group turn) (list 'file turn (expand-file-name "a.txt"))))
    (qwen-companion-changes-test-settle)
    (goto-char (point-min))
    (changes-fuzz--find (if (string-empty-p after) before after)
                        (if (string-empty-p after) "-" "+"))
    (set-window-point nil (point))
    (let ((undone (qwen-companion-hunks-dropped-p
                   (qwen-companion-hunks-view-hunk-at (point))))
          (now (aref agent place)))
      (cond
       ;; What is there tells whether it is undone.
       ((equal now before) (should undone))
       ((equal now after) (should-not undone)))
      (cond
       ((equal now wanted)
        (changes-fuzz--count 'done-already)
        (should-error (qwen-companion-changes-test-press key) :type 'user-error))
       ((and (equal key "u") (not undone))
        (changes-fuzz--count 'not-undone)
        (should-error (qwen-companion-changes-test-press key) :type 'user-error))
       ((equal now expected)
        (changes-fuzz--count (if (equal key "k") 'undone 'brought-back))
        (qwen-companion-changes-test-press key)
        (aset agent place wanted))
       (t
        (changes-fuzz--count 'conflict)
        ;; A later turn has written there: a conflict, and nothing is written.
        (qwen-companion-changes-test-press key)
        (should (equal disk (qwen-companion-changes-test-bytes "a.txt")))
        (let ((conflict (changes-fuzz--buffer)))
          (should (with-current-buffer conflict (qwen-companion-conflicts-p)))
          (with-current-buffer conflict
            (erase-buffer)
            (insert (changes-fuzz--text model))
            (save-buffer)
            (unless buffer
              (kill-buffer)))))))))

(defun changes-fuzz--find (text sign)
  "Go to the hunk with the first line of TEXT after SIGN."
  (let ((line (concat sign (car (split-string text "\n")) "\n")))
    (unless (search-forward line nil t)
      (ert-fail (list "Not shown:" line (buffer-string))))
    (forward-line -1)
    (should (qwen-companion-hunks-view-hunk-at (point)))))

(defun changes-fuzz--step (model)
  "Take a random step with MODEL."
  (let ((writes (changes-fuzz--model-writes model)))
    (pcase (random 10)
      ((and (or 0 1)
            (guard (< (length qwen-companion-changes-test-turns) changes-fuzz--turns)))
       (changes-fuzz--agent-writes model))
      ((or 2 3 4) (changes-fuzz--user-edits model))
      (5 (changes-fuzz--visit model))
      (n (when writes
           (changes-fuzz--swap model (nth (random (length writes)) writes)
                               (if (cl-evenp n) "k" "u")))))))

(defun changes-fuzz-run (seed steps)
  "Take STEPS random steps from SEED; git merges."
  (qwen-companion-changes-test-with nil
    (changes-fuzz--run seed steps)))

(defun changes-fuzz-run-for-real (seed steps)
  "Take STEPS random steps from SEED; the Python process merges.
Buffers follow the disk."
  (qwen-companion-changes-test-with-process
    (changes-fuzz--run seed steps)))

(defun changes-fuzz--run (seed steps)
  "Take STEPS random steps from SEED, then undo everything.
What is left is what was there before with the edits of the user."
  (random (format "%s" seed))
  (let ((model (changes-fuzz--make-model
                :agent (make-vector changes-fuzz--places nil)
                :user (make-vector changes-fuzz--places "")
                :newline (if (zerop (random 3)) "\r\n" "\n")))
        original)
    (dotimes (place changes-fuzz--places)
      (aset (changes-fuzz--model-agent model) place
            (cl-loop repeat (random 3) concat (changes-fuzz--line model "old"))))
    (setq original (copy-sequence (changes-fuzz--model-agent model)))
    (qwen-companion-changes-test-write "a.txt" (changes-fuzz--bytes model))
    (dotimes (_ steps)
      (changes-fuzz--step model)
      (changes-fuzz--check model))
    ;; All of it, newest first: each place gets back what it had.
    (dolist (write (changes-fuzz--model-writes model))
      (when (equal (nth 3 write) (aref (changes-fuzz--model-agent model) (cadr write)))
        (changes-fuzz--swap model write "k")
        (changes-fuzz--check model)))
    (should (equal original (changes-fuzz--model-agent model)))))

(defun changes-fuzz ()
  "Take as many steps as the command line says, in runs of 40 each."
  (pcase-let* ((`(,steps ,from) (mapcar #'string-to-number command-line-args-left))
               (seed (or from 1))
               (left (or steps 1000))
               (failed 0))
    (setq command-line-args-left nil)
    (while (> left 0)
      (condition-case err
          (if (cl-evenp seed)
              (changes-fuzz-run-for-real seed (min 40 left))
            (changes-fuzz-run seed (min 40 left)))
        (error
         (cl-incf failed)
         (message "seed %d: %S" seed err)))
      (cl-incf seed)
      (cl-decf left 40))
    (message "%d runs of changes, %d failed: %S" (- seed (or from 1)) failed
             changes-fuzz--counts)
    (kill-emacs (if (> failed 0) 1 0))))

(provide 'changes-fuzz)
;;; changes-fuzz.el ends here
